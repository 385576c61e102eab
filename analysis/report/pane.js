// A canvas over the time that is shown: size, axis, zooming, panning, tooltip. What is drawn is up to its kind.

/** `height` pixels of content under a time axis; `draw(context, width)` and `at(x, y)` are the kind's own. */
class Pane {
  constructor(box, view, label) {
    this.box = box;
    this.view = view;
    this.canvas = box.appendChild(document.createElement("canvas"));
    this.spacer = box.appendChild(document.createElement("div"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", label);
    this.context = this.canvas.getContext("2d");
    this.height = 0;
    view.panes.push(this);
    this.listen();
  }

  get right() { return this.width - RIGHT; }

  x(seconds) { return GUTTER + ((seconds - this.view.from) / (this.view.to - this.view.from)) * (this.right - GUTTER); }

  time(x) { return this.view.from + ((x - GUTTER) / (this.right - GUTTER)) * (this.view.to - this.view.from); }

  paint() {
    const ratio = window.devicePixelRatio || 1, whole = this.height + AXIS;
    const most = document.documentElement.classList.contains("printing") ? 9000 : Math.max(260, innerHeight * 0.72);
    this.width = Math.max(this.box.clientWidth, 420);
    this.seen = Math.min(whole, Math.floor(most));
    for (const [name, value] of [["width", this.width], ["height", this.seen]]) {
      const pixels = Math.round(value * ratio);
      if (this.canvas[name] !== pixels) {
        this.canvas[name] = pixels;
        this.canvas.style[name] = `${value}px`;
      }
    }
    this.box.style.maxHeight = `${this.seen}px`;
    this.spacer.style.height = `${whole - this.seen}px`;
    this.colours = theme();
    const context = this.context;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.seen);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, this.width, this.seen - AXIS);
    context.clip();
    context.translate(0, AXIS - this.box.scrollTop);
    this.draw(context);
    context.restore();
    this.axis(context);
  }

  axis(context) {
    const [found, unit] = ticks(this.view, this.right - GUTTER);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = this.colours.quiet;
    context.textAlign = "left";
    context.fillText(`time since start (${unit})`, 4, 10);
    context.textAlign = "center";
    context.strokeStyle = this.colours.line;
    context.beginPath();
    for (const [seconds, text] of found) {
      const x = Math.round(this.x(seconds)) + 0.5;
      if (x < GUTTER - 1 || x > this.right + 1) continue;
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(x, this.width - half - 1), 10);
      context.moveTo(x, 20);
      context.lineTo(x, AXIS - 3);
    }
    context.moveTo(GUTTER, AXIS - 3.5);
    context.lineTo(this.right, AXIS - 3.5);
    context.stroke();
  }

  /** Clips what follows to the part right of the labels. */
  inside(context, draw) {
    context.save();
    context.beginPath();
    context.rect(GUTTER, -1e5, this.right - GUTTER, 2e5);
    context.clip();
    draw();
    context.restore();
  }

  label(context, text, x, y, room, style) {
    context.font = style.font;
    context.fillStyle = style.colour;
    context.textAlign = style.align || "left";
    context.textBaseline = "middle";
    let shown = text;
    while (shown.length > 1 && context.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
    context.fillText(shown, x, y);
  }

  place(event) {
    const bounds = this.canvas.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top - AXIS + this.box.scrollTop, event.clientY - bounds.top];
  }

  listen() {
    const canvas = this.canvas;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, y: event.clientY, from: this.view.from, to: this.view.to, top: this.box.scrollTop };
      canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("dragged");
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return this.hover(...this.place(event));
      const by = ((held.x - event.clientX) / (this.right - GUTTER)) * (held.to - held.from);
      this.box.scrollTop = held.top + held.y - event.clientY;
      this.view.show(held.from + by, held.to + by);
      return this.leave();
    });
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, () => {
        held = null;
        canvas.classList.remove("dragged");
      });
    }
    canvas.addEventListener("pointerleave", () => this.leave());
    // a page scrolls by the wheel: it zooms only where the reader has chosen the chart, or holds Ctrl
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      if (event.shiftKey) this.view.pan((event.deltaY || event.deltaX) / 800);
      else this.view.zoom(Math.exp(Math.min(Math.max(event.deltaY, -240), 240) / 300), this.time(this.place(event)[0]));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const key = event.key, view = this.view;
      const actions = {
        "+": () => view.zoom(0.7), "=": () => view.zoom(0.7), "-": () => view.zoom(1 / 0.7),
        ArrowLeft: () => view.pan(-0.15), ArrowRight: () => view.pan(0.15), 0: () => view.show(0, view.end),
        Home: () => view.show(0, view.to - view.from), End: () => view.show(view.end - view.to + view.from, view.end),
        Escape: () => { this.leave(); canvas.blur(); }, ...this.keys(),
      };
      if (!actions[key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      actions[key]();
    });
    this.box.addEventListener("scroll", () => this.view.redraw());
  }

  keys() { return {}; }

  hover(x, y, fromTop) {
    const lines = x >= GUTTER && x <= this.right && fromTop > AXIS ? this.at(x, y) : null;
    if (!lines) return this.leave();
    return this.tell(lines, x, fromTop);
  }

  /** Shows the tooltip beside a place of the canvas. */
  tell(lines, x, y) {
    const tip = document.getElementById("tip"), bounds = this.canvas.getBoundingClientRect();
    tip.replaceChildren();
    lines.forEach(([name, value], index) => {
      const line = tip.appendChild(document.createElement(index ? "div" : "strong"));
      if (name) line.appendChild(document.createElement("span")).textContent = name;
      line.append(value);
    });
    tip.hidden = false;
    const left = bounds.left + x + 16, top = bounds.top + y + 14;
    tip.style.left = `${Math.max(4, left + tip.offsetWidth > innerWidth - 8 ? left - tip.offsetWidth - 32 : left)}px`;
    tip.style.top = `${Math.max(4, Math.min(top, innerHeight - tip.offsetHeight - 8))}px`;
  }

  leave() { document.getElementById("tip").hidden = true; }
}
