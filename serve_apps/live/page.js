// The page: follows the stream, keeps the decisions, and shows them. Nothing here decides or judges.

const SPANS = { "15 min": 900, "1 h": 3600, "6 h": 21600, "1 day": 86400, all: Infinity };
const ENDED = { ok: "completed", shed: "shed (429)", spilled: "spilled over", not_ready: "not ready (503)", timeout: "timed out (504)", aborted: "client disconnected", failed: "failed (500, 502)", invalid: "invalid (4xx)", too_long: "too long for the model (413)" };
const ROOM = 0.02, MOST_ROWS = 5000, LISTED = 15, HOUR_S = 3600;
// Facts of the status document that have a tile, or are the last of the decisions.
const SHOWN_ABOVE = ["Measured", "Forecast", "Decision", "Why"], SAVED = { "Its plan": "Dry run, last day", Headway: "Saved, last day" };
const CLASS_COLOURS = ["blue", "teal", "violet", "amber", "ink"];
const axis = new TimeAxis(), rows = [];
let status = null, roles = "", classes = "", picked = null, span = 3600;

// Decisions come as columns; those that are there already are replaced.
function take(columns) {
  const count = columns.id.length, nested = ["pools", "classes"], names = Object.keys(columns).filter((name) => !nested.includes(name));
  for (let place = 0; place < count; place++) {
    const row = {};
    for (const name of names) row[name] = columns[name][place];
    for (const kind of nested) {
      row[kind] = {};
      for (const [key, part] of Object.entries(columns[kind] || {})) row[kind][key] = Object.fromEntries(Object.entries(part).map(([name, values]) => [name, values[place]]));
    }
    let at = rows.length;
    while (at > 0 && rows[at - 1].id >= row.id) at--;
    rows.splice(at, at < rows.length && rows[at].id === row.id ? 1 : 0, row);
  }
  if (rows.length > MOST_ROWS) rows.splice(0, rows.length - MOST_ROWS);
}

const perSecond = (count, seconds) => count === null || count === undefined || !(seconds > 0) ? null : count / seconds;
const rate = (count, row) => perSecond(count, row.end - row.start);
// Forecasts are of the planner's interval, however long that of a decision was.
const whole = () => status ? status.planner.interval_s : 0, foretold = (name) => (row) => perSecond(row[name], whole());
const ms = (name) => (row) => row[name] === null ? null : row[name] * 1000;
const changed = (row) => Object.values(row.pools).some((pool) => pool.target !== null && pool.before !== null && pool.target !== pool.before);

function build() {
  axis.charts = []; byId("charts").replaceChildren();
  const host = byId("charts"), slo = () => (status && status.slo) || {};
  new Chart(axis, host, [
    { name: "measured", colour: "blue", kind: "step", unit: "/s", value: (row) => rate(row.requests, row) },
    { name: "forecast", colour: "amber", dash: true, kind: "step", unit: "/s", ahead: whole, value: foretold("forecast") },
    { name: "90 % interval", colour: "amber", kind: "band", unit: "/s", ahead: whole, low: foretold("forecast_low"), value: foretold("forecast_high") },
  ], { title: "Requests per second" });
  for (const role of roles.split(",")) {
    const of = (name) => (row) => { const pool = row.pools[role]; return pool ? pool[name] : null; };
    new Chart(axis, host, [
      { name: "ready", colour: "blue", kind: "area", value: of("ready") },
      { name: "target", colour: "ink", kind: "step", value: of("target") },
      { name: "needed", colour: "amber", dash: true, kind: "step", value: of("needed") },
      { name: "expected work", colour: "teal", kind: "line", value: of("expected") },
      { name: "with safety factor", colour: "teal", kind: "band", low: least(of("expected"), of("held")), value: most(of("expected"), of("held")) },
      { name: "starting", colour: "violet", kind: "step", value: of("starting") },
    ], { title: `Replicas: ${role}`, height: 130, marks: (row) => { const pool = row.pools[role]; return pool && pool.target !== pool.before && pool.before !== null; } });
  }
  new Chart(axis, host, [
    { name: "within SLO", colour: "blue", kind: "step", unit: " %", value: (row) => row.attainment === null ? null : 100 * row.attainment },
    { name: "target", colour: "bad", dash: true, kind: "step", unit: " %", value: () => slo().attainment === undefined ? null : 100 * slo().attainment },
  ], { title: "Requests within their SLO", unit: " %", low: "data", high: 100, height: 120 });
  for (const [name, title, target] of [["ttft", "Time to first token", "ttft_ms"], ["itl", "Time between tokens", "itl_ms"]]) {
    const series = [
      { name: "p95", colour: "blue", kind: "step", unit: " ms", value: ms(`${name}_p95`) },
      { name: "p50", colour: "teal", kind: "step", unit: " ms", value: ms(`${name}_p50`) },
      { name: "SLO", colour: "bad", dash: true, kind: "step", unit: " ms", value: () => slo()[target] === undefined ? null : slo()[target] },
    ];
    if (name === "ttft") series.push({ name: "mean queueing", colour: "amber", kind: "step", unit: " ms", value: ms("queue_mean") });
    new Chart(axis, host, series, { title: `${title} (ms)`, height: 120 });
  }
  // Classes have targets that differ: each is drawn in multiples of its own.
  for (const [name, title, target] of classes ? [["ttft", "Time to first token by class", "ttft_ms"], ["itl", "Time between tokens by class", "itl_ms"]] : []) {
    const series = classes.split(",").slice(0, CLASS_COLOURS.length).map((each, place) => ({ name: each, colour: CLASS_COLOURS[place], kind: "step", unit: " ×",
      value: (row) => { const found = row.classes[each], limit = sloOf(each)[target]; return found && found[`${name}_p95`] !== null && limit ? found[`${name}_p95`] * 1000 / limit : null; } }));
    new Chart(axis, host, [...series, { name: "SLO", colour: "bad", dash: true, kind: "step", unit: " ×", value: () => 1 }], { title: `${title}: p95 ÷ target`, unit: " ×", height: 110 });
  }
}

// The targets of a class; what is not set is as the deployment's.
function sloOf(name) {
  const slo = (status && status.slo) || {}, own = (slo.classes || {})[name] || {};
  return { ttft_ms: own.ttft_ms || slo.ttft_ms, itl_ms: own.tpot_ms || slo.itl_ms, attainment: own.attainment || slo.attainment };
}

function show() {
  if (!rows.length && !status) return;
  const names = [...new Set([...Object.keys((status && status.pools) || {}), ...rows.flatMap((row) => Object.keys(row.pools))])].sort().reverse();
  const kinds = Object.keys((status && status.slo.classes) || {}).join(",");
  if (names.join(",") !== roles || kinds !== classes) { roles = names.join(","); classes = kinds; build(); }
  const last = rows[rows.length - 1], to = Math.max(status ? status.now : 0, last ? last.end + (last.forecast === null ? 0 : whole()) : 0);
  // A young system fills the picture, with a little room before it.
  const first = rows.length ? rows[0].start : to - HOUR_S, from = Math.max(to - span, first - ROOM * (to - first));
  axis.show(rows, from, to);
  if (status) { head(); tiles(); latencies(); facts(); fleet(); }
  decisions();
}

function head() {
  const { verdict } = status;
  set(byId("model"), status.model); document.title = `${verdict.well ? "" : "! "}${status.model}: ${verdict.state}`;
  byId("badges").replaceChildren(...status.warnings.map((text) => make("span", text, "badge")));
  const line = byId("verdict"); set(line, verdict.text); line.className = verdict.state;
}

// The share of the error budget used in the last seconds, of all requests or of a class.
function burn(seconds, name) {
  const target = name ? sloOf(name).attainment : status.slo.attainment, since = status.now - seconds;
  let missed = 0, count = 0;
  for (const row of rows) {
    const found = name ? row.classes[name] || {} : row;
    if (row.end > since && Number.isFinite(found.attainment) && found.judged) { missed += (1 - found.attainment) * found.judged; count += found.judged; }
  }
  return count && target < 1 ? missed / count / (1 - target) : null;
}
const used = (share) => share === null ? "n/a" : `${digits(100 * share)} %`;

// GPU-hours of the replicas in these rows.
function gpuHours(shown) {
  return Object.entries(status.pools).reduce((sum, [role, pool]) => sum + (pool.gpus_per_replica || 1) * shown.reduce((hours, row) => {
    const counts = row.pools[role];
    return hours + (counts ? (counts.ready || 0) + (counts.starting || 0) + (counts.draining || 0) : 0) * (row.end - row.start) / HOUR_S;
  }, 0), 0);
}

// The best simpler fleets on the same traffic, and the mean GPUs of ours over the same intervals.
const OTHERS = [["fixed", "the best fixed fleet"], ["threshold", "the best threshold"]];
function otherFleets() {
  const found = status.alternatives, last = found ? rows.slice(-found.intervals) : [], seconds = last.reduce((sum, row) => sum + row.end - row.start, 0);
  if (!seconds) return [];
  const ours = gpuHours(last) * HOUR_S / seconds, judged = last.filter((row) => Number.isFinite(row.attainment) && row.judged), count = judged.reduce((sum, row) => sum + row.judged, 0);
  const oursKept = count ? judged.reduce((sum, row) => sum + row.attainment * row.judged, 0) / count : null;
  return OTHERS.map(([name, text]) => [text, { ...found[name], ours, kept: 1 - found[name].lost, oursKept, kind: name }]);
}
// Nobody misses the target by a rounding error; what is unknown misses nothing.
const misses = (share) => share !== null && share < status.slo.attainment - 1e-9;
const against = (other) => { const share = other.ours / other.gpus - 1; return Math.abs(share) < 0.005 ? "as many" : `${Math.round(Math.abs(share) * 100)} % ${share > 0 ? "more" : "fewer"}`; };

function tiles() {
  const { attainment, slo, pools, measured, last_decision: last, advice } = status, found = [];
  const tile = (name, value, remark, kind) => found.push([name, value, remark || "", kind || ""]);
  tile("Within SLO, last interval", percent(attainment.last_interval), `target ${percent(slo.attainment)}, ${percent(attainment.total)} in total`,
    status.verdict.state === "burning" ? "bad" : attainment.last_interval >= slo.attainment ? "good" : "");
  const burnt = burn(HOUR_S);
  tile("Error budget, last hour", used(burnt), "share of the error budget used", burnt > 1 ? "bad" : burnt === null ? "" : "good");
  const seconds = measured && measured.end_s > measured.start_s ? measured.end_s - measured.start_s : null;
  tile("Load", measured && measured.requests !== null && seconds ? `${digits(measured.requests / seconds)}/s` : "n/a", measured ? listed([measured.isl_tokens, "tokens in"], [measured.cached_tokens || null, "cached"], [measured.osl_tokens, "tokens out"]) : "");
  const { requests: next, requests_low: low, requests_high: high } = (last && last.forecast) || {};
  if (whole() && next !== undefined && next !== null) {
    tile("Forecast, next interval", `${digits(next / whole())}/s`, [low === undefined || low === null ? "" : `90 % interval ${digits(low / whole())} to ${digits(high / whole())}`, last.forecast_error ? `recent error ${Math.round(100 * last.forecast_error)} %` : ""].filter(Boolean).join("; "));
  }
  for (const role of roles.split(",").filter((each) => pools[each])) {
    const pool = pools[role], target = last && last.targets[role], moving = [pool.starting && `${pool.starting} starting`, pool.draining && `${pool.draining} draining`, pool.asleep && `${pool.asleep} asleep`].filter(Boolean);
    tile(`Replicas: ${role}`, `${digits(pool.ready)} ready`, [target !== undefined && target !== null ? `target ${target}` : "", ...moving, listed([pool.running, "running"], [pool.waiting, "waiting"])].filter(Boolean).join(", "));
  }
  const gpus = (counts) => Object.entries(pools).reduce((sum, [role, pool]) => sum + counts(role, pool) * (pool.gpus_per_replica || 1), 0);
  const budget = status.planner.max_gpu_budget;
  tile("GPUs", digits(gpus((role, pool) => (pool.ready || 0) + (pool.starting || 0) + (pool.draining || 0))), budget ? `budget ${budget}` : "no budget set");
  if (rows.length) {
    const { price_per_gpu_hour: price, currency } = status.cost || {}, taken = gpuHours(rows);
    tile(price ? "Cost" : "GPU-hours", price ? money(taken * price, currency) : digits(taken), `${price ? `${digits(taken)} GPU-hours ` : ""}in ${lasting(rows[rows.length - 1].end - rows[0].start)}`);
  }
  // A fleet that misses the target is no measure for one that keeps it; where ours does, that is said.
  for (const [name, other] of otherFleets()) {
    const late = [["it", other.kept], ["ours", other.oursKept]].filter(([, kept]) => misses(kept)).map(([who, kept]) => `; ${who} keeps ${percent(kept)}, target ${percent(slo.attainment)}`);
    tile(`GPUs: against ${name}`, misses(other.kept) ? "misses the target" : against(other), `mean ${digits(other.gpus)} GPUs, ours ${digits(other.ours)}${late.join("")}`, late.length || other.ours > other.gpus * 1.005 ? "" : "good");
  }
  const plan = status.facts.find(({ name }) => SAVED[name]);
  if (plan) tile(SAVED[plan.name], percent(((advice.acting && advice.acted) || advice).day.saved_share.value), plan.text);
  const host = byId("tiles");
  while (host.children.length > found.length) host.lastChild.remove();
  found.forEach(([name, value, remark, kind], place) => {
    const node = host.children[place] || host.appendChild(make("div"));
    if (!node.children.length) node.append(make("div", "", "name"), make("div", "", "value"), make("div", "", "remark"));
    node.className = `tile ${kind}`; [name, value, remark].forEach((text, each) => set(node.children[each], text));
  });
}

// A change is a line of its own; decisions in a row that changed nothing are one, the newest first, with all their reasons.
const counted = (row) => Object.entries(row.pools).filter(([, pool]) => pool.target !== null).sort().reverse().map(([role, pool]) => pool.before !== null && pool.before !== pool.target ? `${role} ${pool.before} → ${pool.target}` : `${role} ${pool.target}`).join(", ");
const alike = (row, other) => !changed(row) && !changed(other) && row.outcome === other.outcome && counted(row) === counted(other);
function decisions() {
  const every = byId("every").checked, shown = [];
  for (let place = rows.length - 1; place >= 0; place--) {
    const row = rows[place], fold = shown[shown.length - 1];
    if (fold && fold[fold.length - 1].id === row.id + 1 && alike(fold[0], row)) fold.push(row);
    else if (shown.length === LISTED) break;
    else if (every || changed(row) || !fold) shown.push([row]);
  }
  const list = byId("list");
  while (list.children.length > shown.length) list.lastChild.remove();
  shown.forEach((fold, place) => {
    const row = fold[0], first = fold[fold.length - 1], reasons = new Map();
    for (const each of [...fold].reverse()) reasons.set(each.summary.replace(/[\d.,]*\d/g, "#"), each.summary);
    const node = list.children[place] || list.appendChild(make("tr"));
    if (!node.children.length) { node.append(make("td"), make("td"), make("td"), make("td")); node.tabIndex = 0; }
    const since = fold.length > 1 ? `, the same since ${clock(first.at)} #${first.id}` : "";
    [`${clock(row.at)} #${row.id}${since}`, counted(row), [...reasons.values()].join(" Then: "), row.outcome].forEach((text, each) => set(node.children[each], text));
    node.dataset.id = row.id; node.className = fold.some((each) => each.id === picked) ? "picked" : "";
  });
}

async function tell(row) {
  picked = row.id; decisions();
  const panel = byId("story");
  set(byId("storytitle"), `Decision ${row.id} at ${clock(row.at)}`);
  try {
    const answer = await fetch(`v1/control/decisions/${row.id}/story`, { headers: headers() });
    const steps = answer.ok ? await answer.json() : { "": ["No longer stored."] };
    if (picked !== row.id) return;
    byId("steps").replaceChildren(...Object.entries(steps).flatMap(([name, lines]) => [make("dt", name), ...lines.map((line) => make("dd", line))]));
  } catch { byId("steps").replaceChildren(make("dd", "The control plane does not answer.")); }
  panel.hidden = false;
}

function fleet() {
  const replicas = status.replicas || [];
  byId("fleet").hidden = !replicas.length;
  if (!replicas.length) return;
  const waiting = replicas.reduce((sum, one) => sum + one.waiting, 0), running = replicas.reduce((sum, one) => sum + one.running, 0);
  set(byId("fleettext"), `${digits(replicas.length)} replicas, ${digits(running)} requests running, ${digits(waiting)} waiting. Darker: fuller KV cache (prefill: longer batch). Red edge: requests waiting.`);
  heatMap(byId("heat"), replicas);
}

// The last interval: percentiles beside their targets, of all requests and by class.
function latencies() {
  const { measured, slo, attainment } = status;
  if (!measured) return;
  const cells = (found, own) => ["ttft", "itl"].flatMap((name) => {
    const { p50, p95, p99 } = found[`${name}_s`] || {}, target = own[`${name}_ms`];
    return [[p50, p95, p99].every(unknown) ? "n/a" : [p50, p95, p99].map((each) => unknown(each) ? "n/a" : digits(each * 1000)).join(" / "), digits(target)];
  });
  const line = (name, found, share, own, of) => {
    const burnt = burn(HOUR_S, of), bad = [share !== null && share < own.attainment && 2, burnt > 1 && 4].filter(Boolean);
    return [name, digits(found.requests), percent(share), percent(own.attainment), used(burnt), ...cells(found, own), bad];
  };
  const queued = measured.queue_s, mean = (measured.ttft_s || {}).mean, share = queued !== null && queued !== undefined && mean ? `; ${Math.round(100 * Math.min(1, queued / mean))} % of mean TTFT is queueing` : "";
  tables(byId("latencies"), [[`Latencies of the last interval in ms${share}`, ["class", "requests", "within SLO", "target", "error budget used, last hour", "TTFT p50 / p95 / p99", "target", "ITL p50 / p95 / p99", "target"],
    [line("all", measured, attainment.last_interval, slo), ...Object.entries(measured.classes || {}).map(([name, found]) => line(name, found, found.attainment, sloOf(name), name))]]]);
}

function facts() {
  const { classes: judgedByClass, slo } = status, blocks = [];
  const block = (title, head, lines) => { if (lines.length) blocks.push([title, head, lines]); };
  block("State", ["", ""], status.facts.filter(({ name }) => !SHOWN_ABOVE.includes(name)).map(({ name, text, ok }) => [name, text, !ok && [1]]));
  block("Classes since the gateway started", ["class", "within SLO", "target", "error budget used"], Object.keys(slo.classes || {}).map((name) => {
    const judged = (judgedByClass || {})[name], target = sloOf(name).attainment, count = judged ? judged.met + judged.missed : 0;
    const share = count ? judged.met / count : null;
    return [name, count ? `${percent(share)} of ${digits(count)}` : "n/a", percent(target), used(share === null || target >= 1 ? null : (1 - share) / (1 - target)), share !== null && share < target];
  }));
  const ended = Object.entries(status.outcomes || {}).filter(([, count]) => count), whole = ended.reduce((sum, [, count]) => sum + count, 0);
  block("Finished requests", ["outcome", "requests", "share"], ended.map(([name, count]) => [ENDED[name] || name, digits(count), `${digits(100 * count / whole)} %`, name === "failed" || name === "shed"]));
  const router = status.routing || {}, turned = (counts, text) => Object.entries(counts || {}).filter(([, count]) => count).map(([reason, count]) => [`${text}: ${reason.replaceAll("_", " ")}`, digits(count)]);
  const guess = (target) => { const said = router.predictions || {}; return said[`${target} pairs`] && !unknown(said[`${target} error`]) ? [[`error of predicted ${target.toUpperCase()}`, `${percent(said[`${target} error`])} of measured`]] : []; };
  block("Router", ["", ""], [...(router.queued === undefined ? [] : [["held now", digits(router.queued)]]), ...turned(router.sheds, "shed"), ...turned(router.fallbacks, "placed without the router"), ...guess("ttft"), ...guess("tpot")]);
  block("Other fleets on the same traffic", ["fleet", "", "GPUs", "within SLO"], otherFleets().map(([name, other]) => [name, Object.entries(other.pools).map(([role, value]) => other.kind === "fixed" ? `${role} ${value}` : `${role} at ${percent(value)}`).join(", "), digits(other.gpus), percent(other.kept), misses(other.kept) && [3]]));
  tables(byId("facts"), blocks);
}

// Tables of a title, a head and lines; after its cells a line may say which of them are bad: true for all but the first.
function tables(host, blocks) {
  const text = JSON.stringify(blocks);
  if (host.dataset.text === text) return;
  host.dataset.text = text;
  host.replaceChildren(...blocks.map(([title, head, lines]) => {
    const part = make("div"), wide = make("div", undefined, "wide"), table = make("table"), top = make("tr");
    table.className = head.length > 5 ? "many" : head[0] ? "" : "named";
    top.append(...head.map((name) => make("th", name)));
    table.append(top, ...lines.map((line) => {
      const row = make("tr"), bad = line[head.length], isBad = (each) => bad === true ? each > 0 : Boolean(bad) && bad.includes(each);
      row.append(...head.map((_, each) => make("td", line[each] || "", isBad(each) ? "bad" : "")));
      [...row.children].forEach((cell, each) => { cell.dataset.head = head[each]; });
      return row;
    }));
    wide.append(table); part.append(make("h2", title), wide);
    return part;
  }));
}

async function follow() {
  const answer = await asked("v1/control/live");
  if (!answer) return false;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the stream ended");
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(part) || [];
      if (!name) continue;
      const found = JSON.parse(data);
      heard = Date.now();
      if (name === "history") take(found);
      if (name === "status") status = found;
      linked(name === "away" ? found.reason : "");
    }
    show();
  }
}

for (const [name, seconds] of Object.entries(SPANS)) {
  const button = make("button", name);
  button.setAttribute("aria-pressed", String(seconds === span));
  button.addEventListener("click", () => { span = seconds; for (const each of byId("spans").children) each.setAttribute("aria-pressed", String(each === button)); show(); });
  byId("spans").append(button);
}
byId("every").addEventListener("change", decisions);
byId("list").addEventListener("click", openStory);
byId("list").addEventListener("keydown", (event) => { if (event.key === "Enter") openStory(event); });
function openStory(event) { const line = event.target.closest("tr"), row = line && rows.find((each) => each.id === Number(line.dataset.id)); if (row) tell(row); }
const shut = () => { byId("story").hidden = true; picked = null; decisions(); };
byId("close").addEventListener("click", shut);
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !byId("story").hidden) shut(); });
window.addEventListener("resize", () => axis.draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { axis.draw(); if (status) fleet(); });
axis.onPick = tell;
begin(follow);
