// Levels over time: memory of each device, stacked by category; the share of each link's bandwidth in use.

const TALL = 84, LOW = 30, BETWEEN = 14;

class Levels extends Pane {
  constructor(box, view, items, tall, title) {
    super(box, view, `${title}. Plus and minus zoom, arrows pan.`);
    this.tall = tall;
    this.items = items.map((item, index) => ({ ...item, y: 10 + index * (tall + BETWEEN) }));
    this.height = 10 + items.length * (tall + BETWEEN);
  }

  item(y) { return this.items.find((each) => y >= each.y - 4 && y <= each.y + this.tall + 4); }

  frame(context, item, name, top, bottom) {
    context.fillStyle = this.colours.lane;
    context.fillRect(GUTTER, item.y, this.right - GUTTER, this.tall);
    const small = { font: "10px system-ui, sans-serif", colour: this.colours.quiet, align: "right" };
    const bold = { font: "600 12px system-ui, sans-serif", colour: this.colours.ink };
    this.label(context, top, GUTTER - 8, item.y + 4, 74, small);
    if (bottom) this.label(context, bottom, GUTTER - 8, item.y + this.tall - 2, 74, small);
    this.label(context, name, 4, item.y + this.tall / 2, bottom ? 96 : GUTTER - 62, bold);
  }

  /** A dashed line across at a height. */
  dashes(context, points, colour) {
    context.strokeStyle = colour;
    context.setLineDash([5, 3]);
    context.beginPath();
    points.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
    context.setLineDash([]);
  }
}

/** Each pixel shows the highest total within it, so that no peak is lost. */
class Memory extends Levels {
  constructor(box, view, track) {
    super(box, view, track.memory, TALL, `Memory in use on ${track.memory.length} devices`);
    this.devices = track.devices;
    for (const item of this.items) {
      item.total = new Float64Array(item.time_s.length);
      for (const each of item.categories) each.bytes.forEach((bytes, index) => { item.total[index] += bytes; });
      item.peak = item.total.reduce((most, value) => Math.max(most, value), 0);
      const held = item.reserved ? item.reserved.reduce((most, value) => Math.max(most, value), item.peak) : item.peak;
      const limit = item.capacity_bytes;
      item.shows = limit && limit < 2.5 * held; // a limit far above would flatten everything below it
      item.top = (item.shows ? Math.max(limit, held) : held) * 1.08 || 1;
    }
  }

  draw(context) {
    for (const item of this.items) {
      const limit = item.capacity_bytes ? `of ${size(item.capacity_bytes)}` : "";
      this.frame(context, item, this.devices[item.device], size(item.top), "0");
      const quiet = { font: "10px system-ui, sans-serif", colour: this.colours.quiet };
      this.label(context, `peak ${size(item.peak)}`, 4, item.y + this.tall / 2 + 15, 98, quiet);
      if (limit) this.label(context, limit, 4, item.y + this.tall / 2 + 28, 98, quiet);
      this.inside(context, () => this.stack(context, item));
    }
  }

  stack(context, item) {
    const base = item.y + this.tall, scale = this.tall / item.top, reserved = [], runs = [];
    let next = Math.max(above(item.time_s, this.view.from) - 1, 0), from = GUTTER, shown = -1;
    const flush = (x) => { if (shown >= 0) runs.push({ from, wide: x - from, shown, y: base }); };
    for (let x = GUTTER; x < this.right; x++) {
      const until = this.time(x + 1);
      let best = item.time_s[next] <= until ? next : -1, held = best < 0 || !item.reserved ? 0 : item.reserved[best];
      while (next + 1 < item.time_s.length && item.time_s[next + 1] < until) {
        next++;
        if (best < 0 || item.total[next] > item.total[best]) best = next;
        if (item.reserved) held = Math.max(held, item.reserved[next]);
      }
      if (best !== shown) {
        flush(x);
        [from, shown] = [x, best];
      }
      if (item.reserved) reserved.push([x, base - held * scale]);
    }
    flush(this.right);
    for (const each of item.categories) {
      context.fillStyle = each.colour;
      for (const run of runs) {
        const high = each.bytes[run.shown] * scale;
        run.y -= high;
        if (high) context.fillRect(run.from, run.y, run.wide, high);
      }
    }
    if (item.reserved) this.dashes(context, reserved, this.colours.ink);
    if (!item.shows) return;
    const y = base - item.capacity_bytes * scale;
    this.dashes(context, [[GUTTER, y], [this.right, y]], this.colours.limit);
    const style = { font: "10px system-ui, sans-serif", colour: this.colours.limit, align: "right" };
    this.label(context, "capacity", this.right - 4, y + 7, 90, style);
  }

  at(x, y) {
    const item = this.item(y);
    const index = item ? above(item.time_s, this.time(x)) - 1 : -1;
    if (index < 0) return null;
    const lines = [["", this.devices[item.device]], ["at", duration(this.time(x))]];
    for (const each of [...item.categories].reverse()) {
      if (each.bytes[index]) lines.push([each.name, size(each.bytes[index])]);
    }
    lines.push(["in use", size(item.total[index])]);
    if (item.reserved) lines.push(["reserved", size(item.reserved[index])]);
    if (item.capacity_bytes) lines.push(["capacity", size(item.capacity_bytes)]);
    return lines;
  }
}

/** Each pixel shows the mean within it, so that areas are bytes. */
class Links extends Levels {
  constructor(box, view, track) {
    super(box, view, track.links, LOW, `Utilization of ${track.links.length} links`);
    for (const item of this.items) {
      const { time_s: time, utilization: share } = item;
      item.area = new Float64Array(time.length);
      for (let index = 1; index < time.length; index++) {
        item.area[index] = item.area[index - 1] + share[index - 1] * (time[index] - time[index - 1]);
      }
      item.top = Math.max(1, share.reduce((most, value) => Math.max(most, value), 0));
    }
  }

  until(item, seconds) {
    const index = above(item.time_s, seconds) - 1;
    return index < 0 ? 0 : item.area[index] + item.utilization[index] * (seconds - item.time_s[index]);
  }

  draw(context) {
    for (const item of this.items) {
      this.frame(context, item, item.name, `${Math.round(item.top * 100)} %`, "");
      this.inside(context, () => {
        context.fillStyle = this.colours.accent;
        let before = this.until(item, this.time(GUTTER));
        for (let x = GUTTER; x < this.right; x++) {
          const area = this.until(item, this.time(x + 1)), mean = (area - before) / (this.time(x + 1) - this.time(x));
          const high = (Math.max(mean, 0) / item.top) * this.tall;
          if (high > 0.05) context.fillRect(x, item.y + this.tall - high, 1, high);
          before = area;
        }
      });
    }
  }

  at(x, y) {
    const item = this.item(y);
    if (!item) return null;
    const index = above(item.time_s, this.time(x)) - 1, share = index < 0 ? 0 : item.utilization[index];
    const rate = `${digits((share * item.bytes_per_s) / 1e9, 3)} GB/s of ${digits(item.bytes_per_s / 1e9, 3)} GB/s`;
    return [["", item.name], ["at", duration(this.time(x))], ["in use", `${(100 * share).toFixed(1)} %`], ["rate", rate],
      ["model", item.kind.replace("_", " ")]];
  }
}
