// The time that is shown, what every pane of it needs, and numbers as text.
"use strict";

const GUTTER = 172, RIGHT = 14, AXIS = 30;
const BELOW = 1e-9; // the shortest time to be seen, as a share of the run

/** A range of time, and the panes that show it. */
class View {
  constructor(end) {
    this.end = end > 0 ? end : 1;
    this.from = 0;
    this.to = this.end;
    this.panes = [];
    this.waiting = false;
  }

  show(from, to) {
    const span = Math.min(Math.max(to - from, this.end * BELOW), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - span);
    this.to = this.from + span;
    this.redraw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const pane of this.panes) pane.paint();
    });
  }
}

/** The colours of the page as it is now: light, dark or printed. */
function theme() {
  const probe = document.getElementById("probe");
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  return { ink: read("ink"), quiet: read("quiet"), line: read("line"), lane: read("lane"), paper: read("paper"),
    accent: read("accent"), limit: read("limit") };
}

/** The first index whose value is above `wanted`, in a column that never falls. */
function above(column, wanted) {
  let low = 0, high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] > wanted) high = middle;
    else low = middle + 1;
  }
  return low;
}

const TIMES = [[1, "s"], [1e3, "ms"], [1e6, "µs"], [1e9, "ns"]];

/** How many make a second, and the symbol, of the unit in which a time reads well. */
function unitOf(seconds) {
  return TIMES.find(([per]) => seconds * per >= 1) || (seconds ? TIMES[3] : TIMES[0]);
}

function digits(value, count = 4) {
  if (!value) return "0";
  const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(places, 12));
}

function duration(seconds) {
  const [per, unit] = unitOf(Math.abs(seconds));
  return `${digits(seconds * per)} ${unit}`;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), 0), 4);
  return power ? `${digits(bytes / 1024 ** power, 3)} ${units[power]}` : `${Math.round(bytes)} B`;
}

/** Steps of 1, 2 or 5 so that `room` holds about so many of them. */
function step(span, room) {
  const rough = span / Math.max(room, 1), power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((each) => each * power >= rough * (1 - 1e-9)) * power;
}

/** Where the ticks of the time axis are, what they say, and the unit. */
function ticks(view, pixels) {
  const span = view.to - view.from, [per, unit] = unitOf(span / 2), found = [];
  const distance = step(span * per, pixels / 105), first = Math.ceil((view.from * per) / distance - 1e-9);
  const places = Math.max(0, -Math.floor(Math.log10(distance) + 1e-9));
  for (let index = first; index * distance <= view.to * per * (1 + 1e-12); index++) {
    found.push([(index * distance) / per, (index * distance).toFixed(places)]);
  }
  return [found, unit];
}
