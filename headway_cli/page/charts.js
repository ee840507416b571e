"use strict";
// Draws the figures of a page as SVG, each from the JSON that stands in it: page/figure.py says what that holds.
// Lines, steps, bands, points and bars; legends that hide, a cursor over all panels, zoom by dragging, data as CSV.

const DASHES = { dash: "7 5", dot: "2 4", dashdot: "8 4 2 4" };
const PANEL_PX = 176, LETTER_PX = 6.3, NEAR_PX = 14, DRAGGED_PX = 8;
const TIME_STEPS = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

function html(tag, kind, host, text = "") {
  const made = document.createElement(tag);
  made.className = kind; made.textContent = text; host.append(made);
  return made;
}
function svg(tag, attributes, host, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text; host.append(made);
  return made;
}
const isKnown = (value) => typeof value === "number" && Number.isFinite(value);
const plain = (value) => value.toLocaleString("en", { maximumSignificantDigits: 12 });
const digits = (value) => plain(Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(4)));

// What an axis shows: the limits that it names, else those of its values (from 0 for heights).
function limits(axis, values, isHeight) {
  if (axis.scale === "names") return [-0.5, axis.names.length - 0.5];
  const isLog = axis.scale === "log";
  let least = Infinity, most = -Infinity;
  for (const value of values) if (isKnown(value) && (!isLog || value > 0)) { least = Math.min(least, value); most = Math.max(most, value); }
  if (least > most) [least, most] = isLog ? [1, 10] : [0, 1];
  const low = axis.low ?? (isLog ? least / 1.3 : isHeight ? Math.min(0, least) : least);
  const high = axis.high ?? (isLog ? most * 1.3 : isHeight ? most + 0.1 * (most - low) : most);
  return high === low ? [low, low + Math.max(1, 1e-9 * Math.abs(low))] : [low, high];
}

// Values to pixels and back.
function scale(axis, [low, high], from, to) {
  const isLog = axis.scale === "log", of = isLog ? Math.log10 : (value) => value;
  const begin = of(low), width = of(high) - begin;
  return {
    low, high,
    at: (value) => from + (isLog && value <= 0 ? -1 : (of(value) - begin) / width) * (to - from),
    back: (pixel) => { const place = begin + (pixel - from) / (to - from) * width; return isLog ? 10 ** place : place; },
  };
}

// Places and texts of an axis's marks, about `count` of them.
function ticks(axis, low, high, count) {
  const [least, most] = low < high ? [low, high] : [high, low], inside = (at) => at >= least * 0.9999 - 1e-12 && at <= most * 1.0001 + 1e-12;
  if (axis.ticks) return axis.ticks.filter(([at]) => inside(at));
  if (axis.scale === "names") return axis.names.map((name, place) => [place, name]);
  if (axis.scale === "log") {
    const powers = Math.ceil(Math.log10(most)) - Math.floor(Math.log10(least)), found = [];
    const steps = powers <= 3 ? [1, 2, 5] : [1], every = Math.ceil(powers / (2 * count));
    for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most); power += every)
      for (const step of steps) found.push(step * 10 ** power);
    return found.filter(inside).map((at) => [at, plain(Number(at.toPrecision(3)))]);
  }
  const rough = (most - least) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = axis.scale === "time" ? TIME_STEPS.find((each) => each >= rough) ?? 2592000
    : Math.max([1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough), axis.whole ? 1 : 0);
  const origin = axis.scale === "time" ? axis.origin_s % step : 0, found = [];
  for (let at = Math.ceil((least + origin) / step - 1e-9) * step - origin; at <= most + 1e-9 * step; at += step) found.push(at);
  return found.map((at) => [at, told(axis, Number(at.toPrecision(12)), step)]);
}

// A value of an axis in words; `step` is the distance of its marks.
function told(axis, value, step = 1) {
  if (axis.scale === "names") return axis.names[Math.round(value)] ?? "";
  if (axis.scale !== "time") return axis.share ? `${plain(Number((100 * value).toPrecision(4)))} %` : step < 1 ? plain(value) : digits(value);
  const [day, clock] = new Date(1000 * (axis.origin_s + value)).toISOString().split("T");
  return step >= 86400 ? day.slice(5) : `${step >= 21600 ? `${day.slice(5)} ` : ""}${clock.slice(0, step < 60 ? 8 : 5)}`;
}

// A mark of a given size about 0,0 as an SVG path.
function shape(symbol, size) {
  const r = size / 2, corners = (points) => `M${points.map(([x, y]) => `${(r * x).toFixed(2)},${(r * y).toFixed(2)}`).join("L")}Z`;
  if (symbol.startsWith("diamond")) return corners([[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]]);
  if (symbol.startsWith("square")) return corners([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]]);
  if (symbol.startsWith("triangle")) return corners([[-1, -0.9], [1, -0.9], [0, 0.9]]);
  if (symbol.startsWith("star")) {
    const turn = (place) => [place % 2 ? 0.5 : 1.15, (place * Math.PI) / 5 - Math.PI / 2];
    return corners([...Array(10).keys()].map(turn).map(([far, angle]) => [far * Math.cos(angle), far * Math.sin(angle)]));
  }
  return `M${-r},0a${r},${r} 0 1,0 ${size},0a${r},${r} 0 1,0 ${-size},0Z`;
}
const each = (given, place) => (Array.isArray(given) ? given[place] : given);

class Panel {
  constructor(figure, spec, place) {
    Object.assign(this, { figure, spec, place, shown: null });
    this.box = html("div", "panel", figure.grid);
    const head = html("div", "legend", this.box), title = html("h3", "", head, spec.title);
    html("small", "", title, [spec.y.title, spec.right && `right: ${spec.right.title}`].filter(Boolean).join("; "));
    for (const one of spec.series) if (!one.group && !one.unlisted) figure.switch(head, this.key(one), one);
    this.picture = svg("svg", { role: "img", tabindex: 0, "aria-label": `${spec.title}. Arrow keys move the cursor.` }, this.box);
    const on = (name, act) => this.picture.addEventListener(name, act);
    on("pointerdown", (event) => { if (event.button === 0) this.from = this.pointer(event); });
    on("pointermove", (event) => { const at = this.pointer(event); if (this.from && event.buttons) this.stretch(at); else figure.point(this, at); });
    on("pointerup", (event) => this.release(this.pointer(event)));
    on("pointercancel", () => this.release(null));
    on("pointerleave", (event) => { if (!event.buttons) figure.point(null); });
    on("dblclick", () => figure.reset());
    on("keydown", (event) => this.step(event));
    on("blur", () => figure.point(null));
  }
  key(one) { return one.group ?? `${this.place}:${one.name}`; }
  get series() { return this.spec.series.filter((one) => !this.figure.hidden.has(this.key(one))); }
  heights(right) {
    const every = this.spec.series.filter((one) => Boolean(one.right) === right);
    return every.flatMap((one) => [...one.y, ...(one.base ?? []), ...(one.spread ?? []).map((more, at) => one.y[at] + more)]);
  }
  yLimits(right) { return (!right && this.shown?.y) || limits(right ? this.spec.right : this.spec.y, this.heights(right), true); }
  yTicks(right) {
    const axis = right ? this.spec.right : this.spec.y;
    return ticks(axis, ...this.yLimits(right), Math.max(2, (this.spec.height ?? PANEL_PX) / 42));
  }
  // Room for the texts of the marks, left or right.
  room(right) { return right && !this.spec.right ? 12 : 14 + LETTER_PX * Math.max(2, ...this.yTicks(right).map(([, text]) => text.length)); }

  draw(left, right) {
    const { spec, figure, picture } = this, width = this.box.clientWidth, height = spec.height ?? PANEL_PX;
    const plot = this.plot = { left, right: width - right, top: 10, bottom: height - (spec.x.title ? 38 : 22) };
    const xLimits = figure.spec.shared ? figure.shown ?? figure.limits : this.shown?.x ?? limits(spec.x, spec.series.flatMap((one) => one.x), false);
    this.x = scale(spec.x, xLimits, plot.left, plot.right);
    this.y = scale(spec.y, this.yLimits(false), plot.bottom, plot.top);
    if (spec.right) this.y2 = scale(spec.right, this.yLimits(true), plot.bottom, plot.top);
    picture.replaceChildren();
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`); picture.style.height = `${height}px`;
    for (const [at, text] of this.yTicks(false)) {
      svg("path", { class: "rule", d: `M${plot.left},${this.y.at(at)}H${plot.right}` }, picture);
      svg("text", { x: plot.left - 6, y: this.y.at(at) + 4, "text-anchor": "end" }, picture, text);
    }
    if (spec.right) for (const [at, text] of this.yTicks(true)) svg("text", { x: plot.right + 6, y: this.y2.at(at) + 4 }, picture, text);
    let free = -Infinity;
    for (const [at, text] of ticks(spec.x, this.x.low, this.x.high, Math.max(2, (plot.right - plot.left) / 80))) {
      const half = (text.length * LETTER_PX) / 2, x = Math.min(this.x.at(at), width - half - 2);
      if (spec.x.scale !== "names") svg("path", { class: "rule faint", d: `M${this.x.at(at)},${plot.top}V${plot.bottom}` }, picture);
      if (x - half < free) continue;
      free = x + half + 4;
      svg("text", { x, y: plot.bottom + 16, "text-anchor": "middle" }, picture, text);
    }
    if (spec.x.title) svg("text", { class: "soft", x: (plot.left + plot.right) / 2, y: height - 4, "text-anchor": "middle" }, picture, spec.x.title);
    const clip = `clip${figure.number}_${this.place}`, cut = svg("clipPath", { id: clip }, picture);
    svg("rect", { x: plot.left, y: plot.top - 5, width: Math.max(0, plot.right - plot.left), height: plot.bottom - plot.top + 8 }, cut);
    const layer = svg("g", { class: "drawn", "clip-path": `url(#${clip})` }, picture);
    for (const one of this.series) this.one(one, layer);
    this.taken = [];
    for (const one of this.series) if (one.labels) this.labels(one, picture);
    this.cursor = svg("path", { class: "cursor" }, picture);
    this.marked = svg("rect", { class: "marked", visibility: "hidden" }, picture);
  }
  one(one, layer) {
    const y = one.right ? this.y2 : this.y, at = (place, values = one.y) => `${this.x.at(one.x[place]).toFixed(1)},${y.at(values[place]).toFixed(1)}`;
    const known = [...one.y.keys()].filter((place) => isKnown(one.y[place]));
    if (one.bars) return this.bars(one, known, y, layer);
    const steps = (places, values) => places.map((place, k) => (k && one.step ? `H${this.x.at(one.x[place]).toFixed(1)}V${y.at(values[place]).toFixed(1)}` : `${k ? "L" : "M"}${at(place, values)}`)).join("");
    // A gap in what is known is a gap in the line.
    const runs = [], last = (run) => (one.step && run.at(-1) + 1 < one.x.length ? `H${this.x.at(one.x[run.at(-1) + 1]).toFixed(1)}` : "");
    for (const place of known) { if (place && runs.length && runs.at(-1).at(-1) === place - 1) runs.at(-1).push(place); else runs.push([place]); }
    for (const run of runs) if (one.base) {
      const back = [...run].reverse(), under = back.map((place, k) => (one.step && k ? `V${y.at(one.base[place]).toFixed(1)}H${this.x.at(one.x[place]).toFixed(1)}` : `L${at(place, one.base)}`)).join("");
      svg("path", { d: `${steps(run, one.y)}${under}Z`, fill: one.colour, "fill-opacity": 0.32 }, layer);
    }
    const shared = { fill: "none", stroke: one.colour, opacity: one.opacity ?? 1 };
    if (!one.base && one.line !== "none")
      svg("path", { ...shared, d: runs.map((run) => steps(run, one.y) + last(run)).join(""), "stroke-width": one.width ?? 2, "stroke-dasharray": DASHES[one.line] ?? "none", "stroke-linejoin": "round" }, layer);
    // A run of one point has no length: a dot shows it.
    if (!one.base && !one.step && !one.symbol && one.line !== "none") for (const run of runs) if (run.length === 1)
      svg("circle", { cx: this.x.at(one.x[run[0]]), cy: y.at(one.y[run[0]]), r: 3, fill: one.colour, opacity: one.opacity ?? 1 }, layer);
    if (one.spread) this.whiskers(known, one, y, (place) => this.x.at(one.x[place]), layer);
    if (one.symbol) for (const place of known) {
      const symbol = each(one.symbol, place), isOpen = symbol.endsWith("open");
      svg("path", { d: shape(symbol, each(one.size, place) ?? 6), transform: `translate(${at(place)})`, fill: isOpen ? "none" : one.colour, stroke: isOpen ? one.colour : "var(--paper)", "stroke-width": isOpen ? 1.6 : 0.8, opacity: one.opacity ?? 1 }, layer);
    }
  }
  bars(one, known, y, layer) {
    // All bars are equally wide, and those that a name has stand about it.
    const rows = this.series.filter((other) => other.bars), share = 0.8 / rows.length, width = (this.x.at(1) - this.x.at(0)) * share - 1;
    const beside = (x) => rows.filter((other) => isKnown(other.y[other.x.indexOf(x)]));
    const middle = (place) => { const here = beside(one.x[place]); return this.x.at(one.x[place] + share * (here.indexOf(one) + 0.5 - here.length / 2)); };
    for (const place of known) svg("rect", { x: middle(place) - width / 2, width: Math.max(1, width), y: y.at(one.y[place]), height: Math.max(0, y.at(0) - y.at(one.y[place])), fill: one.colour }, layer);
    if (one.spread) this.whiskers(known, one, y, middle, layer);
  }
  whiskers(known, one, y, middle, layer) {
    const end = (place, sign) => y.at(Math.max(y.low < y.high ? y.low : y.high, one.y[place] + sign * (one.spread[place] ?? 0)));
    const d = known.filter((place) => one.spread[place]).map((place) => `M${middle(place) - 3},${end(place, 1)}h6m-3,0V${end(place, -1)}m-3,0h6`).join("");
    svg("path", { d, fill: "none", class: "whisker" }, layer);
  }
  labels(one, host) {
    const { plot, taken } = this, y = one.right ? this.y2 : this.y;
    one.labels.forEach((text, place) => {
      const x = this.x.at(one.x[place]), half = (text.length * LETTER_PX) / 2;
      if (!text || !isKnown(one.y[place]) || x < plot.left - 1 || x > plot.right + 1) return;
      const middle = Math.min(Math.max(x, plot.left + half), plot.right - half), top = Math.max(y.at(one.y[place]) - 7, 9);
      if (taken.some((other) => Math.abs(other.middle - middle) < other.half + half && Math.abs(other.top - top) < 11)) return;
      taken.push({ middle, half, top });
      svg("text", { class: "label", x: middle, y: top, "text-anchor": "middle" }, host, text);
    });
  }

  pointer(event) { const area = this.picture.getBoundingClientRect(); return { x: event.clientX - area.left, y: event.clientY - area.top, isMouse: event.pointerType === "mouse" }; }
  stretch(at) {
    const { plot, from } = this, inside = (value, low, high) => Math.min(high, Math.max(low, value));
    const [x0, x1] = [from.x, inside(at.x, plot.left, plot.right)].sort((a, b) => a - b);
    const isBox = at.isMouse && Math.abs(at.y - from.y) > 30, [y0, y1] = isBox ? [from.y, inside(at.y, plot.top, plot.bottom)].sort((a, b) => a - b) : [plot.top, plot.bottom];
    for (const [name, value] of Object.entries({ x: x0, y: y0, width: x1 - x0, height: y1 - y0, visibility: "visible" })) this.marked.setAttribute(name, value);
    this.stretched = { x0, x1, y0, y1, isBox };
  }
  release(at) {
    const found = this.stretched;
    this.from = this.stretched = null; this.marked?.setAttribute("visibility", "hidden");
    if (!at || !found || found.x1 - found.x0 < DRAGGED_PX || this.spec.x.scale === "names") return;
    this.figure.zoom(this, [this.x.back(found.x0), this.x.back(found.x1)], found.isBox ? [this.y.back(found.y1), this.y.back(found.y0)] : this.shown?.y);
  }
  step(event) {
    const stops = [...new Set(this.series.filter((one) => !one.quiet).flatMap((one) => one.x))].filter((at) => at >= this.x.low && at <= this.x.high).sort((a, b) => a - b);
    const here = stops.findIndex((at) => at >= (this.figure.cursor ?? -Infinity)), last = stops.length - 1;
    const place = { ArrowLeft: here - 1, ArrowRight: this.figure.cursor === null ? 0 : here + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.figure.point(null);
    if (place === undefined || last < 0) return;
    event.preventDefault();
    this.figure.point(this, { x: this.x.at(stops[Math.min(last, Math.max(0, place))]), y: null });
  }
  // The mark nearest to the pointer, or to a cursor that the keyboard moves.
  mark(at) {
    let best = null, far = this.spec.nearest ? 3 * NEAR_PX : NEAR_PX;
    for (const one of this.series) if (one.symbol && (one.hover || this.spec.nearest)) one.x.forEach((value, place) => {
      if (!isKnown(one.y[place])) return;
      const y = (one.right ? this.y2 : this.y).at(one.y[place]), away = Math.hypot(this.x.at(value) - at.x, at.y === null ? 9 : y - at.y);
      if (away < far) { far = away; best = { one, place, y }; }
    });
    return best;
  }
  // What every line has where the cursor stands: name, colour and words.
  lines(value) {
    const found = [];
    for (const one of this.series) {
      if (one.quiet || one.hover) continue;
      let place = -1, least = Infinity;
      if (one.step) place = one.x.findLastIndex((at) => at <= value + 1e-9);
      else one.x.forEach((at, k) => { if (Math.abs(at - value) < least) { least = Math.abs(at - value); place = k; } });
      if (place >= 0 && isKnown(one.y[place])) found.push([one, this.words(one, place)]);
    }
    return found;
  }
  words(one, place) {
    const more = one.spread?.[place] ? ` ± ${digits(one.spread[place])}` : "";
    return one.told?.[place] ?? (this.spec.y.share && !one.right ? told(this.spec.y, one.y[place]) : digits(one.y[place])) + more;
  }
}

let figures = 0;
class Figure {
  constructor(host) {
    this.spec = JSON.parse(host.textContent); this.host = host; this.number = figures++;
    Object.assign(this, { hidden: new Set(), shown: null, cursor: null, width: 0 });
    for (const panel of this.spec.panels) for (const one of panel.series) if (typeof one.x === "number") one.x = this.spec.columns[one.x];
    host.replaceChildren();
    const head = html("div", "legend top", host), groups = new Map();
    for (const panel of this.spec.panels) for (const one of panel.series) if (one.group && !groups.has(one.group)) groups.set(one.group, one);
    for (const [group, one] of groups) this.switch(head, group, { ...one, name: group });
    const tools = html("span", "tools", head);
    this.whole = this.button(tools, "whole range", () => this.reset()); this.whole.hidden = true;
    this.button(tools, "CSV", () => this.save()).title = "The data of these charts as a file";
    this.grid = html("div", this.spec.wide ? "panels wide" : "panels", host);
    this.panels = this.spec.panels.map((panel, place) => new Panel(this, panel, place));
    this.limits = this.spec.shared && limits(this.spec.panels[0].x, this.spec.panels.flatMap((panel) => panel.series.flatMap((one) => one.x)), false);
    this.tip = html("div", "tip", host); this.tip.hidden = true;
    new ResizeObserver(() => { if (host.clientWidth !== this.width) this.draw(); }).observe(host);
    this.draw();
  }
  button(host, text, act) { const made = html("button", "", host, text); made.type = "button"; made.onclick = act; return made; }
  // A line of a legend: a click hides what it names.
  switch(host, key, one) {
    const made = this.button(host, "", () => { if (!this.hidden.delete(key)) this.hidden.add(key); made.setAttribute("aria-pressed", !this.hidden.has(key)); this.draw(); });
    made.setAttribute("aria-pressed", "true");
    const sample = svg("svg", { viewBox: "0 0 22 12", width: 22, height: 12, class: "drawn" }, made), symbol = one.symbol && [one.symbol].flat().sort().at(-1), isOpen = symbol?.endsWith("open");
    if (one.bars || one.base) svg("rect", { x: 3, y: 1, width: 16, height: 10, fill: one.colour, "fill-opacity": one.base ? 0.32 : 1 }, sample);
    else if (one.line !== "none") svg("path", { d: "M0,6H22", stroke: one.colour, "stroke-width": 2, "stroke-dasharray": DASHES[one.line] ?? "none" }, sample);
    if (symbol) svg("path", { d: shape(symbol, 9), transform: "translate(11,6)", fill: isOpen ? "none" : one.colour, stroke: one.colour }, sample);
    made.append(one.name);
  }
  draw() {
    this.width = this.host.clientWidth;
    const left = Math.max(...this.panels.map((panel) => panel.room(false))), right = Math.max(...this.panels.map((panel) => panel.room(true)));
    for (const panel of this.panels) panel.draw(left, right);
    this.point(null);
  }
  zoom(panel, x, y) { if (this.spec.shared) this.shown = x; panel.shown = { x, y }; this.whole.hidden = false; this.draw(); }
  reset() { this.shown = null; for (const panel of this.panels) panel.shown = null; this.whole.hidden = true; this.draw(); }
  point(panel, at) {
    const value = panel ? panel.x.back(at.x) : null, isInside = panel && at.x >= panel.plot.left - 2 && at.x <= panel.plot.right + 2;
    this.cursor = isInside ? value : null; this.tip.hidden = true;
    for (const other of this.panels) {
      const isHere = isInside && !panel.spec.nearest && (other === panel || this.spec.shared), x = isHere && other.x.at(value);
      other.cursor.setAttribute("d", isHere ? `M${x},${other.plot.top}V${other.plot.bottom}` : "");
    }
    if (isInside) this.tell(panel, at, value);
  }
  tell(panel, at, value) {
    const mark = panel.mark(at), { tip } = this, row = (one, text) => {
      const line = html("div", "", tip);
      html("i", "", line).style.background = one.colour;
      line.append(`${one.name} `); html("b", "", line, text);
    };
    tip.replaceChildren();
    if (mark && mark.one.hover) { html("div", "", tip, mark.one.hover[mark.place]); }
    else if (mark) { html("div", "", tip, told(panel.spec.x, mark.one.x[mark.place])); row(mark.one, panel.words(mark.one, mark.place)); }
    else if (!panel.spec.nearest) {
      const found = panel.lines(value), unit = panel.spec.x.unit ?? "";
      if (!found.length) return;
      html("div", "when", tip, `${told(panel.spec.x, value)}${unit && ` ${unit}`}`);
      for (const [one, text] of found) row(one, text);
    } else return;
    tip.hidden = false;
    const area = this.host.getBoundingClientRect(), own = panel.picture.getBoundingClientRect(), x = own.left - area.left + at.x;
    const isRight = x + 16 + tip.offsetWidth <= area.width, y = own.top - area.top + (at.y ?? panel.plot.top);
    tip.style.left = `${isRight ? x + 14 : Math.max(0, x - 14 - tip.offsetWidth)}px`;
    tip.style.top = `${Math.min(y + 10, Math.max(0, area.height - tip.offsetHeight))}px`;
  }
  save() {
    const cell = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value), rows = [["panel", "series", "x", "y"]];
    for (const { title, x, series } of this.spec.panels) for (const one of series)
      one.x.forEach((at, place) => rows.push([title, one.name, x.scale === "names" ? x.names[at] : at, one.told?.[place] ?? one.y[place] ?? ""]));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(cell).join(",")).join("\n") + "\n"], { type: "text/csv" }));
    link.download = `${document.title.replace(/[^\w]+/g, "-")}-${this.number + 1}.csv`; link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}
for (const host of document.querySelectorAll(".charts")) host.figure = new Figure(host);
for (const cell of document.querySelectorAll(".stacked td")) cell.dataset.head = cell.closest("table").tHead.rows[0].cells[cell.cellIndex].textContent;
