// What makes the page live: tables that sort, dark and light, which point is shown.

function sortable(table) {
  const body = table.tBodies[0], buttons = [...table.tHead.querySelectorAll("button")];
  const value = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, "en");
    return typeof a === "number" ? -1 : 1; // what has no number comes after those that have
  };
  buttons.forEach((button, column) => button.addEventListener("click", () => {
    const head = button.parentElement, figures = head.classList.contains("figure");
    const was = head.getAttribute("aria-sort"), first = figures ? "descending" : "ascending";
    const order = was ? (was === "ascending" ? "descending" : "ascending") : first;
    for (const each of buttons) each.parentElement.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    rows.sort(([a], [b]) => {
      const mixed = typeof a !== typeof b;
      return mixed || order === "ascending" ? compare(a, b) : compare(b, a);
    });
    body.append(...rows.map(([, row]) => row));
  }));
}

/** A track with its columns as typed arrays. */
async function unpack(id) {
  const track = JSON.parse(document.getElementById(id).textContent);
  const packed = Uint8Array.from(atob(track.columns), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const kinds = { Int32: Int32Array, Float64: Float64Array };
  const read = (value) => {
    if (Array.isArray(value)) return value.map(read);
    if (value === null || typeof value !== "object") return value;
    if (value.type in kinds && "at" in value) return new kinds[value.type](buffer, value.at, value.count);
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, read(each)]));
  };
  return read({ ...track, columns: null });
}

const shown = { view: null };

/** Shows the time lines of one point, on one axis where there are several. */
async function show(point) {
  const tracks = await Promise.all(point.tracks.map((track) => unpack(track.id)));
  const number = String(data.points.indexOf(point));
  document.querySelectorAll(".point").forEach((each) => { each.hidden = each.dataset.point !== number; });
  const box = document.getElementById("charts"), view = new View(Math.max(...tracks.map((track) => track.end_s)));
  box.replaceChildren();
  const pane = (title, note, names) => {
    box.appendChild(document.createElement("h3")).textContent = title;
    if (note) box.appendChild(document.createElement("p")).textContent = note;
    if (names) legend(box, names);
    const made = box.appendChild(document.createElement("div"));
    made.className = "pane";
    return made;
  };
  tracks.forEach((track, index) => {
    const { title } = point.tracks[index], used = [...new Set(track.ops.kind)].sort((a, b) => a - b);
    const names = new Map(used.map((code) => [data.kinds[code].label, data.kinds[code].colour]));
    new Timeline(pane(title, "", names), view, track, data.kinds, `${point.name}, ${title}`);
  });
  if (tracks.length === 1 && tracks[0].memory.length) {
    const names = new Map(tracks[0].memory.flatMap((item) => item.categories.map((each) => [each.name, each.colour])));
    new Memory(pane("Memory in use, by device", "", names), view, tracks[0]);
  }
  if (tracks.length === 1 && tracks[0].links.length) {
    const fair = tracks[0].links.some((link) => link.kind === "fair_share");
    const note = fair ? "On a fair-share link: the mean of each time in which it is busy without a break." : "";
    new Links(pane("Links, share of bandwidth in use", note), view, tracks[0]);
  }
  shown.view = view;
  view.redraw();
}

/** What the colours mean. */
function legend(box, names) {
  const list = box.appendChild(document.createElement("ul"));
  list.className = "legend";
  for (const [name, colour] of names) {
    const item = list.appendChild(document.createElement("li"));
    item.appendChild(document.createElement("span")).style.background = colour;
    item.append(name);
  }
}

function themed() {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const say = () => {
    button.textContent = dark() ? "Light" : "Dark";
    shown.view?.redraw();
  };
  button.addEventListener("click", () => {
    root.style.colorScheme = dark() ? "light" : "dark";
    say();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
  for (const [event, on] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      root.classList.toggle("printing", on);
      for (const pane of shown.view?.panes ?? []) pane.paint();
    });
  }
  say();
}

const data = JSON.parse(document.getElementById("data").textContent);
document.querySelectorAll("table.sorts").forEach(sortable);
themed();
if (data.sweep) new SweepPlot(document.getElementById("plot"), data.sweep);
if (data.points.length) {
  const select = document.getElementById("point");
  select?.addEventListener("change", () => show(data.points[select.selectedIndex]));
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    const factor = Number(button.dataset.zoom);
    if (factor) shown.view.zoom(factor);
    else shown.view.show(0, shown.view.end);
  }));
  new ResizeObserver(() => shown.view?.redraw()).observe(document.getElementById("charts"));
  show(data.points[0]);
}
