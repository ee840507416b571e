"use strict";
// Charts on canvases: lines, steps, areas and marks over one time axis, which all charts share.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const clock = (seconds, withSeconds = true) => {
  const at = new Date(seconds * 1000), two = (n) => String(n).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
};
const day = (seconds) => { const at = new Date(seconds * 1000); return `${at.getDate()} ${at.toLocaleString("en", { month: "short" })}`; };
const digits = (value) => {
  if (unknown(value)) return "n/a";
  const size = Math.abs(value);
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
};

const unknown = (value) => value === null || value === undefined || Number.isNaN(value);
const measure = (value, unit) => `${digits(value)}${unknown(value) ? "" : unit}`;
const percent = (share) => share === null || share === undefined ? "n/a" : `${Number((share * 100).toPrecision(4))} %`;
const lasting = (seconds) => seconds < 120 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${digits(seconds / 3600)} h`;
const money = (value, currency) => /^[a-z]*$/i.test(currency) ? `${digits(value)} ${currency}`.trim() : `${currency}${digits(value)}`;
// Of figures and their words those that are known.
const listed = (...parts) => parts.filter(([value]) => !unknown(value)).map(([value, words]) => `${digits(value)} ${words}`).join(", ");
// A factor may be below 1, so either of two figures may be the lower one; null without both.
const ofBoth = (pick) => (one, other) => (row) => Number.isFinite(one(row)) && Number.isFinite(other(row)) ? pick(one(row), other(row)) : null;
const least = ofBoth(Math.min), most = ofBoth(Math.max);

// Round steps of an axis from `low` to `high`, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) || power;
  const found = [];
  // Rounding up may give -0, which would be written so.
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(at || 0);
  return found;
}
const TIME_STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
function timeTicks(from, to, count) {
  const step = TIME_STEPS.find((each) => (to - from) / each <= count) || 2592000;
  const shift = new Date(from * 1000).getTimezoneOffset() * 60, found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push(at);
  return found;
}

// The span shown and the decision under the cursor. Charts are drawn at most once a frame.
class TimeAxis {
  constructor() { this.from = 0; this.to = 1; this.rows = []; this.cursor = null; this.charts = []; this.onPick = () => {}; this.asked = false; }
  show(rows, from, to) { Object.assign(this, { rows, from, to }); if (this.cursor !== null && this.cursor >= rows.length) this.cursor = null; this.draw(); }
  point(place) { if (place !== this.cursor) { this.cursor = place; this.draw(); } }
  draw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; for (const chart of this.charts) chart.draw(); });
  }
  // The row whose interval is nearest to a time.
  nearest(time) {
    let low = 0, high = this.rows.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (this.rows[middle].end < time) low = middle; else high = middle; }
    if (high < 0) return null;
    return Math.abs(this.rows[low].end - time) <= Math.abs(this.rows[high].end - time) ? low : high;
  }
}

// series: {name, colour, value(row), kind: "line" | "step" | "area" | "band", dash, unit, low(row) of a band, ahead}; options: {title, unit, low, high, marks(row)}
// What is `ahead` was said at the end of a row's interval of the seconds after it, and is drawn over the next interval, the last one over all of them.
class Chart {
  constructor(axis, host, series, options) {
    Object.assign(this, { axis, series, options });
    this.box = document.createElement("div"); this.box.className = "chart";
    this.legend = document.createElement("div"); this.legend.className = "legend";
    const title = document.createElement("h3"); title.textContent = options.title; this.legend.append(title);
    this.items = [];
    this.values = series.map((one) => {
      const item = document.createElement("span"), line = document.createElement("i"), value = document.createElement("b");
      line.style.borderTopColor = `var(--${one.colour})`; line.style.borderTopStyle = one.dash ? "dashed" : "solid";
      line.className = one.kind === "band" ? "band" : "";
      item.append(line, `${one.name} `, value); this.legend.append(item); this.items.push(item);
      return value;
    });
    this.when = document.createElement("span"); this.legend.append(this.when);
    this.canvas = document.createElement("canvas"); this.canvas.tabIndex = 0; this.canvas.setAttribute("role", "img");
    this.box.append(this.legend, this.canvas); host.append(this.box);
    this.canvas.addEventListener("pointermove", (event) => axis.point(this.at(event)));
    this.canvas.addEventListener("pointerleave", () => axis.point(null));
    this.canvas.addEventListener("click", (event) => { const place = this.at(event); if (place !== null) axis.onPick(axis.rows[place]); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    axis.charts.push(this);
  }
  at(event) {
    const area = this.canvas.getBoundingClientRect();
    const share = (event.clientX - area.left - LEFT) / (area.width - LEFT - RIGHT);
    return this.axis.nearest(this.axis.from + share * (this.axis.to - this.axis.from));
  }
  key(event) {
    const { axis } = this, last = axis.rows.length - 1, place = axis.cursor === null ? last : axis.cursor;
    const to = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last }[event.key];
    if (to !== undefined) { axis.point(Math.min(last, Math.max(0, to))); event.preventDefault(); }
    if (event.key === "Enter" && last >= 0) axis.onPick(axis.rows[place]);
    if (event.key === "Escape") axis.point(null);
  }
  draw() {
    const { axis, canvas, options } = this, rows = axis.rows, ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = options.height || 150;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = `${height}px`;
    }
    const shown = rows.filter((row) => row.end >= axis.from && row.start <= axis.to);
    const [low, high] = this.range(shown), plot = { left: LEFT, right: width - RIGHT, top: 9, bottom: height - 18 };
    const x = (time) => plot.left + (time - axis.from) / (axis.to - axis.from) * (plot.right - plot.left);
    const y = (value) => plot.bottom - (Math.min(high, Math.max(low, value)) - low) / (high - low || 1) * (plot.bottom - plot.top);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.clearRect(0, 0, width, height);
    this.frame(pen, plot, x, y, low, high);
    pen.save(); pen.beginPath(); pen.rect(plot.left, 0, plot.right - plot.left, height); pen.clip();
    for (const one of this.series) one.kind === "band" ? this.band(pen, shown, one, x, y) : this.line(pen, shown, one, x, y, plot);
    if (options.marks) for (const row of shown) if (options.marks(row)) mark(pen, x(row.at), plot.bottom, colour("ink"));
    const row = axis.cursor === null ? null : rows[axis.cursor];
    if (row) { pen.strokeStyle = colour("soft"); pen.setLineDash([2, 3]); segment(pen, x(row.end), plot.top, x(row.end), plot.bottom); pen.setLineDash([]); }
    pen.restore();
    this.known = this.series.map((one) => shown.some((each) => Number.isFinite(one.value(each))));
    this.tell(row || rows[rows.length - 1], row, rows[axis.cursor === null ? rows.length - 1 : axis.cursor - 1]);
  }
  range(shown) {
    const { low = 0, high } = this.options, found = [];
    for (const one of this.series) for (const row of shown) for (const value of [one.value(row), one.low ? one.low(row) : NaN]) if (Number.isFinite(value)) found.push(value);
    const most = Math.max(...found, -Infinity), least = Math.min(...found, Infinity);
    const bottom = low === "data" ? Math.max(0, Math.min(high, least) - 0.05 * (high - Math.min(high, least)) - 0.005) : low;
    return [bottom, high !== undefined ? high : Number.isFinite(most) && most > bottom ? bottom + (most - bottom) * 1.08 : bottom + 1];
  }
  frame(pen, plot, x, y, low, high) {
    pen.font = "11px system-ui, sans-serif"; pen.fillStyle = colour("soft"); pen.strokeStyle = colour("line"); pen.lineWidth = 1;
    pen.textAlign = "right"; pen.textBaseline = "middle";
    const marks = ticks(low, high, 4), step = marks.length > 1 ? marks[1] - marks[0] : 1;
    for (const value of marks) {
      segment(pen, plot.left, y(value), plot.right, y(value));
      const text = value.toLocaleString("en", { maximumFractionDigits: Math.max(0, -Math.floor(Math.log10(step))) });
      pen.fillText(`${text}${this.options.unit || ""}`, plot.left - 5, y(value));
    }
    pen.textAlign = "center"; pen.textBaseline = "top";
    const { from, to } = this.axis, long = to - from > 86400;
    for (const time of timeTicks(from, to, Math.max(2, (plot.right - plot.left) / 90))) {
      const text = long ? `${day(time)} ${clock(time, false)}` : clock(time, to - from < 300), half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(plot.right - half, Math.max(half, x(time))), plot.bottom + 4);
    }
  }
  // From low to high of every row for itself.
  band(pen, shown, one, x, y) {
    pen.fillStyle = colour(one.colour); pen.globalAlpha = 0.18;
    for (const [place, row] of shown.entries()) {
      const low = one.low(row), high = one.value(row), [from, to] = extent(one, row, shown[place + 1]);
      if (Number.isFinite(low) && Number.isFinite(high)) pen.fillRect(x(from), y(high), x(to) - x(from), y(low) - y(high));
    }
    pen.globalAlpha = 1;
  }
  line(pen, shown, one, x, y, plot) {
    pen.strokeStyle = pen.fillStyle = colour(one.colour); pen.lineWidth = one.kind === "area" ? 0 : 1.6; pen.setLineDash(one.dash ? [5, 4] : []);
    pen.beginPath();
    let open = false, previous = null, begun = 0;
    const close = () => { if (open && one.kind === "area") { pen.lineTo(x(previous.end), plot.bottom); pen.lineTo(begun, plot.bottom); pen.closePath(); } };
    for (const [place, row] of shown.entries()) {
      const value = one.value(row), [from, to] = extent(one, row, shown[place + 1]);
      // A gap in what is known is a gap in the line.
      if (!Number.isFinite(value) || (previous && row.start - previous.end > 3 * (row.end - row.start))) { close(); open = false; }
      if (!Number.isFinite(value)) continue;
      if (!open) { begun = x(one.kind === "line" ? row.end : from); pen.moveTo(begun, y(value)); }
      if (one.kind !== "line") pen.lineTo(x(from), y(value));
      pen.lineTo(x(to), y(value));
      open = true; previous = row;
    }
    close();
    if (one.kind === "area") { pen.globalAlpha = 0.25; pen.fill(); pen.globalAlpha = 1; } else pen.stroke();
    pen.setLineDash([]);
  }
  // What no row in view knows is left out of the legend. Of a row that is pointed at what was said of it before; else what is said of the next one.
  tell(row, pointed, foretold) {
    const range = (one, from) => unknown(one.value(from)) ? "" : `${digits(one.low(from))} to `;
    const text = (one, from) => `${one.low ? range(one, from) : ""}${measure(one.value(from), one.unit || "")}`;
    const said = this.series.map((one) => { const from = one.ahead ? foretold : row; return from ? text(one, from) : "n/a"; });
    said.forEach((text, place) => { if (this.values[place].textContent !== text) this.values[place].textContent = text; });
    this.when.textContent = pointed ? `${clock(row.start)} to ${clock(row.end)}` : "";
    this.items.forEach((item, place) => { item.hidden = !this.known[place]; });
    const names = this.series.map((one, place) => `${one.name} ${said[place]}`).filter((_, place) => this.known[place]).join(", ");
    this.canvas.setAttribute("aria-label", `${this.options.title}: ${names}. Arrow keys move through decisions, Enter opens one.`);
  }
}
const LEFT = 48, RIGHT = 6;

function extent(one, row, next) {
  if (!one.ahead) return [row.start, row.end];
  const to = row.end + one.ahead();
  return [row.end, next ? Math.min(to, next.end) : to];
}
function segment(pen, x0, y0, x1, y1) { pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke(); }
function mark(pen, x, y, fill) { pen.fillStyle = fill; pen.beginPath(); pen.moveTo(x, y - 7); pen.lineTo(x + 4, y); pen.lineTo(x - 4, y); pen.closePath(); pen.fill(); }

// Replicas as cells, one row of them a role: darker is a fuller KV cache, a red edge has requests waiting.
function heatMap(canvas, replicas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, pen = canvas.getContext("2d");
  const roles = [...new Set(replicas.map((one) => one.role))].sort();
  const most = Math.max(1, ...roles.map((role) => replicas.filter((one) => one.role === role).length));
  const size = most > 400 ? 8 : most > 100 ? 12 : 22, label = 62, across = Math.max(1, Math.floor((width - label) / size));
  const places = [];
  let top = 0;
  for (const role of roles) {
    const mine = replicas.filter((one) => one.role === role);
    mine.forEach((one, place) => places.push({ one, x: label + (place % across) * size, y: top + Math.floor(place / across) * size }));
    places.push({ role, y: top });
    top += Math.ceil(mine.length / across) * size + 8;
  }
  canvas.style.height = `${top}px`; canvas.width = Math.round(width * ratio); canvas.height = Math.round(top * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "top";
  const base = colour("blue"), edge = colour("line"), waits = colour("bad");
  const busiest = Math.max(1, ...replicas.map((one) => one.running));
  for (const { one, role, x, y } of places) {
    if (role) { pen.fillStyle = colour("soft"); pen.fillText(role, 0, y + 2); continue; }
    pen.globalAlpha = 0.08 + 0.92 * Math.min(1, one.kv_usage || one.running / busiest || 0); pen.fillStyle = base; pen.fillRect(x, y, size - 2, size - 2);
    pen.globalAlpha = 1; pen.strokeStyle = one.waiting ? waits : edge; pen.strokeRect(x + 0.5, y + 0.5, size - 3, size - 3);
  }
  canvas.onpointermove = (event) => {
    const area = canvas.getBoundingClientRect(), px = event.clientX - area.left, py = event.clientY - area.top;
    const hit = places.find((each) => each.one && px >= each.x && px < each.x + size && py >= each.y && py < each.y + size);
    canvas.title = hit ? `${hit.one.role} ${hit.one.replica}: ${hit.one.running} running, ${hit.one.waiting} waiting, KV ${Math.round(100 * hit.one.kv_usage)} %` : "";
  };
}
