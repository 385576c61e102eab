// A figure of all points of a sweep over one or two of what was swept.

const WIDE = 1000, HIGH = 380, EDGE = { left: 84, right: 30, top: 18, bottom: 52 };
const DARK_TO_LIGHT = ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725"]; // viridis
const MOST_BARS = 40, MOST_LINES = 8;
const LINES = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8a6d00", "#7f7f7f"]; // Okabe and Ito

function svg(parent, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return parent.appendChild(made);
}

/** Values in order: numbers by size, anything else as it came. */
function distinct(values) {
  const found = [...new Set(values)];
  return found.every((value) => typeof value === "number") ? found.sort((a, b) => a - b) : found;
}

const short = (value) => (typeof value === "number" ? String(+value.toPrecision(4)) : String(value ?? "–"));
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

class SweepPlot {
  constructor(box, sweep) {
    this.box = box;
    this.sweep = sweep;
    this.selects = ["figure", "across", "up"].map((id) => document.getElementById(id));
    for (const select of this.selects) select.addEventListener("change", () => this.draw());
    this.draw();
  }

  draw() {
    const [key, across, up] = this.selects.map((select) => select.value);
    const figure = this.sweep.figures.find((each) => each.key === key);
    const on = (row, axis) => (typeof row[axis] === "number" ? row[axis] * this.sweep.axes[axis].per : row[axis]);
    const points = this.sweep.rows
      .filter((row) => typeof row[key] === "number")
      .map((row) => {
        const rest = Object.values(this.sweep.axes)
          .filter((axis) => axis.key !== across)
          .map((axis) => `${axis.title.split(".").pop()} ${short(on(row, axis.key))} ${axis.unit}`.trim());
        const value = row[key] * figure.per;
        return { name: String(row.name ?? ""), x: on(row, across), y: on(row, up), rest: rest.join(", "), value };
      });
    const named = ({ title, unit }) => title + (unit && unit !== title ? ` (${unit})` : "");
    this.title = named(figure);
    this.names = new Map(Object.values(this.sweep.axes).map((axis) => [axis.key, named(axis)]));
    this.box.replaceChildren();
    if (!points.length) this.box.textContent = "No point has this figure.";
    else if (across === "") this.bars(points);
    else if (up !== "" && up !== across) this.map(points, this.names.get(across), this.names.get(up));
    else this.dots(points, this.names.get(across));
  }

  frame(height, label) {
    const size = { viewBox: `0 0 ${WIDE} ${height}`, role: "img", "aria-label": label };
    return svg(this.box, "svg", size);
  }

  bars(points) {
    const shown = points.slice(0, MOST_BARS), most = Math.max(...shown.map((point) => point.value), 0) || 1;
    const left = 230, room = WIDE - left - 90, chart = this.frame(shown.length * 24 + 30, this.title);
    const more = points.length > shown.length ? `; the first ${shown.length} of ${points.length} points` : "";
    svg(chart, "text", { x: left, y: 14, class: "title" }, this.title + more);
    shown.forEach((point, index) => {
      const y = 26 + index * 24, name = cut(point.name, 32);
      svg(chart, "text", { x: left - 8, y: y + 13, class: "right" }, name);
      const bar = svg(chart, "rect", { x: left, y, width: Math.max((point.value / most) * room, 0), height: 18, class: "mark" });
      svg(bar, "title", {}, `${point.name}: ${short(point.value)}`);
      svg(chart, "text", { x: left + Math.max((point.value / most) * room, 0) + 6, y: y + 13 }, short(point.value));
    });
  }

  /** Places of values along an axis: by size where they are numbers, else side by side. */
  along(values, from, to) {
    const all = distinct(values), numbers = all.every((value) => typeof value === "number");
    const low = all[0], span = all[all.length - 1] - low || 1;
    const place = numbers
      ? (value) => from + ((value - low) / span) * (to - from)
      : (value) => from + ((all.indexOf(value) + 0.5) / all.length) * (to - from);
    return [all, place];
  }

  dots(points, across) {
    const chart = this.frame(HIGH, `${this.title} over ${across}`), bottom = HIGH - EDGE.bottom;
    const [all, place] = this.along(points.map((point) => point.x), EDGE.left + 14, WIDE - EDGE.right - 14);
    const most = Math.max(...points.map((point) => point.value)) * 1.05 || 1, height = (value) =>
      bottom - (value / most) * (bottom - EDGE.top - 14), distance = step(most, 5);
    svg(chart, "text", { x: 6, y: 14, class: "title" }, this.title);
    for (let tick = 0; tick <= most; tick += distance) {
      svg(chart, "path", { d: `M${EDGE.left} ${height(tick)}H${WIDE - EDGE.right}`, class: "grid" });
      svg(chart, "text", { x: EDGE.left - 8, y: height(tick) + 4, class: "right" }, short(tick));
    }
    this.across(chart, all, place, bottom, across);
    const groups = Map.groupBy(points, (point) => point.rest), many = groups.size > MOST_LINES;
    [...groups.values()].forEach((group, index) => {
      const colour = many ? "" : LINES[index];
      const along = group.filter((point) => typeof point.x === "number").sort((a, b) => a.x - b.x);
      const line = along.map((point, at) => `${at ? "L" : "M"}${place(point.x)} ${height(point.value)}`).join("");
      if (!many && line) svg(chart, "path", { d: line, class: "curve" }).style.stroke = colour;
      for (const point of group) {
        const dot = svg(chart, "circle", { cx: place(point.x), cy: height(point.value), r: 4, class: "mark" });
        dot.style.fill = colour;
        svg(dot, "title", {}, `${point.name} ${across} = ${short(point.x)}: ${short(point.value)}`);
      }
    });
    if (!many && groups.size > 1) this.legend([...groups.keys()]);
  }

  /** Which line is of what, above the plot. */
  legend(names) {
    const list = document.createElement("ul");
    list.className = "legend";
    names.forEach((name, index) => {
      const item = list.appendChild(document.createElement("li"));
      item.appendChild(document.createElement("span")).style.background = LINES[index];
      item.append(name);
    });
    this.box.prepend(list);
  }

  across(chart, all, place, bottom, name) {
    const every = Math.ceil(all.length / 14);
    let reached = -Infinity;
    all.forEach((value, index) => {
      const text = cut(short(value), 28), x = place(value), half = text.length * 3.3;
      if (index % every || x - half < reached) return;
      reached = x + half + 6;
      svg(chart, "text", { x, y: bottom + 18, class: "middle" }, text);
    });
    svg(chart, "text", { x: (EDGE.left + WIDE - EDGE.right) / 2, y: bottom + 42, class: "middle title" }, name);
  }

  map(points, across, up) {
    const xs = distinct(points.map((point) => point.x)), ys = distinct(points.map((point) => point.y)).reverse();
    const cell = Math.max(Math.min(34, 420 / ys.length), 4), bottom = EDGE.top + 18 + cell * ys.length, left = 150;
    const chart = this.frame(bottom + EDGE.bottom, `${this.title} over ${across} and ${up}`);
    const values = points.map((point) => point.value), low = Math.min(...values), span = Math.max(...values) - low || 1;
    const wide = (WIDE - left - EDGE.right) / xs.length, best = new Map();
    for (const point of points) {
      const at = `${xs.indexOf(point.x)} ${ys.indexOf(point.y)}`;
      if (!best.has(at) || best.get(at).value < point.value) best.set(at, point);
    }
    const more = points.length > best.size ? ", the highest of each cell" : "";
    svg(chart, "text", { x: left, y: 14, class: "title" }, `${this.title}${more}; down: ${up}`);
    for (const [at, point] of best) {
      const [column, row] = at.split(" ").map(Number), share = (point.value - low) / span;
      const x = left + column * wide, y = EDGE.top + 10 + row * cell;
      const shape = svg(chart, "rect", { x, y, width: wide - 1, height: cell - 1, fill: viridis(share) });
      svg(shape, "title", {}, `${across} = ${short(point.x)}, ${up} = ${short(point.y)}: ${short(point.value)}`);
      if (wide < 46 || cell < 15) continue;
      const ink = share > 0.6 ? "#000" : "#fff";
      svg(chart, "text", { x: x + wide / 2, y: y + cell / 2 + 4, class: "middle" }, short(point.value)).style.fill = ink;
    }
    const every = Math.ceil(14 / cell);
    ys.forEach((value, index) => {
      if (index % every) return;
      svg(chart, "text", { x: left - 8, y: EDGE.top + 14 + (index + 0.5) * cell, class: "right" }, cut(short(value), 20));
    });
    const middle = new Map(xs.map((value, index) => [value, left + (index + 0.5) * wide]));
    this.across(chart, xs, (value) => middle.get(value), bottom, across);
  }
}

function viridis(share) {
  const place = Math.min(Math.max(share, 0), 1) * (DARK_TO_LIGHT.length - 1), index = Math.min(Math.floor(place), 4);
  const [from, to] = [index, index + 1].map((each) => DARK_TO_LIGHT[each].match(/\w\w/g).map((part) => parseInt(part, 16)));
  return `rgb(${from.map((value, channel) => Math.round(value + (to[channel] - value) * (place - index))).join(",")})`;
}
