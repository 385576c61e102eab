// What every lane does: ops as bars; those narrower than a pixel as one column, parted by kind, as dense as they are.

const COMPUTE = 26, MOVE = 13, APART = 8, THIN = 1.5, DIM = 0.22, ODD = 0.72;

class Timeline extends Pane {
  constructor(box, view, track, kinds, title) {
    super(box, view, `Time line of ${title}: ${track.count} ops on ${track.rows.length} lanes. Plus and minus zoom, arrows
      left and right pan, up and down choose a lane, comma and full stop an op.`);
    this.track = track;
    this.kinds = kinds;
    this.hovered = -1;
    this.rows = [];
    const { start_s: start, end_s: end } = track.ops;
    let y = 4, device = -1;
    for (const row of track.rows) {
      y += row.device !== device && device >= 0 ? APART : 0;
      const height = row.computes ? COMPUTE : MOVE, reach = new Float64Array(row.ops.length);
      const [starts, lengths] = [(op) => start[op], (op) => end[op] - start[op]].map((of) => Float64Array.from(row.ops, of));
      row.ops.forEach((op, index) => { reach[index] = Math.max(end[op], index ? reach[index - 1] : 0); });
      this.rows.push({ ...row, y, height, starts, lengths, reach, first: row.device !== device });
      y += height + 1;
      device = row.device;
    }
    this.height = y + 4;
    this.widest = String(track.ops.micro_batch.reduce((most, value) => Math.max(most, value), 0));
    this.number();
  }

  /** What ops have in common that light up together: a micro-batch, or the mini-batch of those that belong to a whole one. */
  number() {
    const ops = this.track.ops, count = this.track.count;
    this.key = new Float64Array(count);
    this.other = new Float64Array(count);
    for (let op = 0; op < count; op++) {
      const replica = this.track.replicas > 1 ? ops.replica[op] * 2 ** 32 : 0, whole = this.kinds[ops.kind[op]].whole;
      this.key[op] = whole ? -1 - ops.micro_batch[op] : replica + ops.micro_batch[op];
      this.other[op] = ops.other_micro_batch[op] < 0 ? this.key[op] : replica + ops.other_micro_batch[op];
    }
  }

  alike(a, b) {
    const key = this.key, other = this.other;
    return key[a] === key[b] || key[a] === other[b] || other[a] === key[b] || other[a] === other[b];
  }

  draw(context) {
    const top = this.box.scrollTop, bottom = top + this.seen, colours = this.colours;
    const seen = this.rows.filter((row) => row.y + row.height >= top && row.y <= bottom);
    for (const row of seen) {
      context.fillStyle = colours.lane;
      context.fillRect(GUTTER, row.y, this.right - GUTTER, row.height);
      const middle = row.y + row.height / 2 + 0.5;
      const font = row.computes ? "11px system-ui, sans-serif" : "9.5px system-ui, sans-serif";
      const style = { font, colour: colours.quiet, align: "right" };
      this.label(context, row.label, GUTTER - 8, middle, row.first ? 84 : GUTTER - 14, style);
      if (!row.first) continue;
      const name = { font: "600 12px system-ui, sans-serif", colour: colours.ink };
      this.label(context, this.track.devices[row.device], 4, middle, 72, name);
    }
    this.inside(context, () => seen.forEach((row) => this.bars(context, row)));
  }

  bars(context, row) {
    const { kind: kinds, micro_batch: number } = this.track.ops, view = this.view;
    const scale = (this.right - GUTTER) / (view.to - view.from), hovered = this.hovered, size = this.track.micro_batches;
    const last = above(row.starts, view.to);
    [context.font, context.textAlign, context.textBaseline] = ["11px system-ui, sans-serif", "center", "middle"];
    const room = context.measureText(this.widest).width + 4; // numbers stand in all ops of a width, or in none
    const parts = new Float64Array(this.kinds.length), columns = this.kinds.map(() => []);
    let pixel = -1, busy = 0;
    const flush = () => {
      if (pixel < 0) return;
      const dense = Math.max(Math.min(busy, 1), 0.12) * (hovered < 0 ? 1 : DIM);
      let y = row.y;
      for (let kind = 0; kind < parts.length; kind++) {
        if (parts[kind] < 0) continue;
        const high = (busy ? parts[kind] / busy : 1) * row.height;
        columns[kind].push(pixel, y, high, dense);
        y += high;
      }
      pixel = -1;
    };
    for (let index = above(row.reach, view.from); index < last; index++) {
      const op = row.ops[index], lit = hovered >= 0 && this.alike(op, hovered);
      const left = GUTTER + (row.starts[index] - view.from) * scale, width = row.lengths[index] * scale;
      if (width < THIN && !lit) {
        if (Math.floor(left) !== pixel) {
          flush();
          [pixel, busy] = [Math.floor(left), 0];
          parts.fill(-1);
        }
        busy += width;
        parts[kinds[op]] = Math.max(parts[kinds[op]], 0) + width;
        continue;
      }
      flush();
      const kind = this.kinds[kinds[op]];
      const from = Math.max(left, GUTTER - 2), wide = Math.max(Math.min(left + width, this.right + 2) - from, THIN);
      const odd = !kind.moves && (kind.whole ? number[op] : Math.floor(number[op] / size)) % 2;
      context.globalAlpha = (odd ? ODD : 1) * (hovered < 0 || lit ? 1 : DIM);
      context.fillStyle = kind.colour;
      context.fillRect(from, row.y, wide > 5 ? wide - 1 : wide, row.height);
      if (op === hovered) this.outline(context, from, row.y, wide, row.height);
      if (width > room && row.computes && !kind.whole) this.inscribe(context, String(number[op]), from + wide / 2, row, kind);
    }
    flush();
    columns.forEach((some, kind) => { // by kind: to change the colour for each would take most of the time
      context.fillStyle = this.kinds[kind].colour;
      for (let at = 0; at < some.length; at += 4) {
        context.globalAlpha = some[at + 3];
        context.fillRect(some[at], some[at + 1], 1, some[at + 2]);
      }
    });
    context.globalAlpha = 1;
  }

  outline(context, x, y, width, height) {
    context.strokeStyle = this.colours.ink;
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, Math.max(width - 2, 1), height - 2);
    context.lineWidth = 1;
  }

  inscribe(context, text, x, row, kind) {
    context.fillStyle = kind.ink;
    context.fillText(text, x, row.y + row.height / 2 + 0.5);
  }

  at(x, y) {
    const row = this.rows.find((each) => y >= each.y && y <= each.y + each.height);
    const op = row ? this.find(row, x) : -1;
    this.light(op);
    return op < 0 ? null : this.about(op);
  }

  /** The op of a lane at a place, or the nearest within three pixels; of several the one that started last. */
  find(row, x) {
    const time = this.time(x), { start_s: start, end_s: end } = this.track.ops;
    let nearest = -1, miss = (3 * (this.view.to - this.view.from)) / (this.right - GUTTER);
    for (let index = Math.min(above(row.starts, time), row.ops.length - 1); index >= 0; index--) {
      const op = row.ops[index], off = Math.max(start[op] - time, time - end[op], 0);
      if (off < miss) [nearest, miss] = [op, off];
      if (!off || time - row.reach[index] > miss) break;
    }
    return nearest;
  }

  light(op) {
    if (op === this.hovered) return;
    this.hovered = op;
    this.view.redraw();
  }

  leave() {
    super.leave();
    this.light(-1);
  }

  name(op) {
    const ops = this.track.ops, text = this.kinds[ops.kind[op]].text;
    const replica = ops.replica[op] ? `@${ops.replica[op]}` : "";
    const other = `${ops.other_stage[op]}B${ops.other_micro_batch[op]}`;
    if (text === "FB") return `(${ops.stage[op]}F${ops.micro_batch[op]};${other})${replica}`;
    return `${ops.stage[op]}${text}${ops.micro_batch[op]}${replica}${ops.part[op] < 0 ? "" : `.${ops.part[op]}`}`;
  }

  about(op) {
    const ops = this.track.ops, kind = this.kinds[ops.kind[op]], devices = this.track.devices;
    const where = ops.target[op] < 0 ? devices[ops.source[op]] : `${devices[ops.source[op]]} → ${devices[ops.target[op]]}`;
    const lines = [["", `${this.name(op)} ${kind.name}`], ["on", where], ["stage", String(ops.stage[op])]];
    lines.push([kind.whole ? "mini-batch" : "micro-batch", String(ops.micro_batch[op])]);
    if (this.track.replicas > 1 || ops.replica[op]) lines.push(["replica", String(ops.replica[op])]);
    lines.push(["start", duration(ops.start_s[op])], ["duration", duration(ops.end_s[op] - ops.start_s[op])]);
    if (ops.reads[op] >= 0) lines.push(["reads version", String(ops.reads[op])]);
    if (ops.writes[op] >= 0) lines.push(["writes version", String(ops.writes[op])]);
    if (ops.bytes[op]) lines.push(["payload on a link", size(ops.bytes[op])]);
    return lines;
  }

  /** Up and down choose a lane, comma and full stop the op before and after. */
  keys() {
    const move = (lane, by) => () => {
      this.lane = Math.min(Math.max((this.lane ?? 0) + lane, 0), this.rows.length - 1);
      const row = this.rows[this.lane], now = this.hovered < 0 ? this.view.from : this.track.ops.start_s[this.hovered];
      let index = lane ? above(row.starts, now) - 1 : row.ops.indexOf(this.hovered) + by;
      index = Math.min(Math.max(index, 0), row.ops.length - 1);
      this.choose(row, row.ops[index]);
    };
    return { ArrowUp: move(-1, 0), ArrowDown: move(1, 0), ",": move(0, -1), ".": move(0, 1) };
  }

  choose(row, op) {
    const { start_s: start, end_s: end } = this.track.ops, span = this.view.to - this.view.from;
    if (end[op] < this.view.from || start[op] > this.view.to) this.view.show(start[op] - span / 3, start[op] + (span * 2) / 3);
    if (row.y < this.box.scrollTop) this.box.scrollTop = row.y;
    if (row.y + row.height > this.box.scrollTop + this.seen - AXIS) this.box.scrollTop = row.y + row.height + AXIS - this.seen;
    this.light(op);
    const x = Math.min(Math.max(this.x(start[op]), GUTTER), this.right);
    this.tell(this.about(op), x, row.y + row.height + AXIS - this.box.scrollTop);
  }
}
