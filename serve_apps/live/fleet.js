// The page of a fleet: asks for all deployments in short, and shows who has which GPUs and who needs a look.

const PERIOD_MS = 2000, COLOURS = ["blue", "teal", "violet", "amber", "good"];
const HEADS = ["deployment", "state", "model", "requests/s", "within SLO", "replicas", "GPUs", "wants", "why it has no more"];
const sum = (found) => found.reduce((total, each) => total + (each || 0), 0);
const shown = (value, digits = 0) => value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits });
const share = (value) => value === null || value === undefined ? "–" : `${(100 * value).toFixed(value < 0.9995 ? 1 : 0)} %`;
let fleet = null;

// GPUs that a deployment holds: what the planner counts, else its replicas wanted now.
const held = (each) => each.budget ? each.budget.holds : sum(Object.values(each.pools).map((pool) => (pool.desired || 0) * (pool.gpus_per_replica || 1)));
const wants = (each) => each.budget && each.budget.wanted !== null ? each.budget.wanted : null;
const ready = (each) => sum(Object.values(each.pools).map((pool) => pool.ready));
const asleep = (each) => Object.keys(each.pools).length > 0 && sum(Object.values(each.pools).map((pool) => pool.desired)) === 0;
const well = (each) => !each.verdict || each.verdict.well;
const missed = (each) => each.attainment !== null && each.attainment !== undefined && each.promised !== null && each.attainment < each.promised;
const state = (each) => asleep(each) ? "asleep" : each.verdict ? each.verdict.state : each.planner || "unknown";
const replicas = (each) => Object.entries(each.pools).map(([role, pool]) => `${role} ${pool.ready ?? "–"}${pool.ready === pool.desired ? "" : ` of ${pool.desired}`}`).join(", ");

function show() {
  const all = fleet.deployments, bad = all.filter((each) => !well(each)), sleeping = all.filter(asleep);
  const line = byId("verdict"), names = bad.map((each) => each.deployment);
  set(line, !bad.length ? `All ${all.length} deployments are well` : `${bad.length} of ${all.length} deployments need a look: ${names.slice(0, 6).join(", ")}${names.length > 6 ? " …" : ""}`);
  line.className = bad.length ? "blind" : "keeping";
  document.title = `${bad.length ? "! " : ""}Headway: ${all.length} deployments`;
  tiles(all, sleeping); bar(all); table(all);
}

function tiles(all, sleeping) {
  const gpus = sum(all.map(held)), late = all.filter(missed);
  const found = [
    ["GPUs held", `${shown(gpus)}${fleet.gpus ? ` of ${shown(fleet.gpus)}` : ""}`, Object.entries(fleet.by_type || {}).map(([type, of]) => `${type} ${shown(sum(all.filter((each) => each.budget && each.budget.gpu_type === type).map(held)))} of ${shown(of)}`).join(", ") || "targets of all planners", fleet.gpus && gpus > fleet.gpus ? "bad" : ""],
    ["Deployments", shown(all.length), `${sleeping.length} asleep, ${all.length - sleeping.length} with replicas`, ""],
    ["Below their promise", shown(late.length), late.length ? late.slice(0, 3).map((each) => each.deployment).join(", ") : "in the last interval", late.length ? "bad" : "good"],
    ["Requests per second", shown(sum(all.map((each) => each.requests_per_s)), 1), `${shown(sum(all.map((each) => each.in_flight)))} in flight at this gateway`, ""],
  ];
  byId("tiles").replaceChildren(...found.map(([name, value, remark, kind]) => {
    const tile = make("div", undefined, `tile ${kind}`);
    tile.append(make("div", name, "name"), make("div", value, "value"), make("div", remark, "remark"));
    return tile;
  }));
}

// One bar: what each holds, the largest first, and what is free.
function bar(all) {
  const holders = all.filter((each) => held(each) > 0).sort((one, other) => held(other) - held(one));
  const total = Math.max(fleet.gpus || 0, sum(all.map(held))) || 1;
  byId("gpus").replaceChildren(...holders.map((each, place) => {
    const part = make("a", held(each) / total > 0.06 ? `${each.deployment} ${held(each)}` : "");
    part.href = `deployments/${each.deployment}/`; part.title = `${each.deployment}: ${held(each)} GPUs`;
    part.style.width = `${100 * held(each) / total}%`; part.style.background = `var(--${COLOURS[place % COLOURS.length]})`;
    return part;
  }));
  byId("gpus").setAttribute("aria-label", holders.map((each) => `${each.deployment} ${held(each)}`).join(", "));
  set(byId("free"), fleet.gpus ? `${shown(fleet.gpus - sum(all.map(held)))} of ${shown(fleet.gpus)} free${fleet.room ? `; on nodes: ${fleet.room}` : ""}` : "No common budget (fleet.gpus)");
}

function table(all) {
  if (!byId("heads").children.length) { const row = make("tr"); row.append(...HEADS.map((head) => make("th", head))); byId("heads").append(row); }
  const wanted = byId("filter").value.trim().toLowerCase();
  // Who needs a look comes first, then who holds most.
  const rank = (each) => [well(each) ? 1 : 0, missed(each) ? 0 : 1, -held(each)];
  const found = all.filter((each) => `${each.deployment} ${each.model} ${state(each)}`.toLowerCase().includes(wanted))
    .sort((one, other) => { const [a, b] = [rank(one), rank(other)]; const at = a.findIndex((value, place) => value !== b[place]); return at < 0 ? one.deployment.localeCompare(other.deployment) : a[at] - b[at]; });
  byId("rows").replaceChildren(...found.map((each) => {
    const row = make("tr"), link = make("a", each.deployment); link.href = `deployments/${each.deployment}/`;
    const name = make("td"); name.append(link);
    const badge = make("td", state(each), well(each) ? "" : "bad"); if (each.verdict) badge.title = each.verdict.text;
    const words = each.budget && each.budget.words || (well(each) ? "" : each.verdict.text);
    row.append(name, badge, make("td", each.model), make("td", shown(each.requests_per_s, 2)), make("td", share(each.attainment), missed(each) ? "bad" : ""),
      make("td", replicas(each)), make("td", shown(held(each))), make("td", shown(wants(each))), make("td", words));
    [...row.children].forEach((cell, place) => { cell.dataset.head = HEADS[place]; });
    return row;
  }));
}

async function follow() {
  for (;;) {
    const answer = await asked("v1/fleet");
    if (!answer) return false;
    fleet = await answer.json(); heard = Date.now();
    linked(""); show();
    await new Promise((done) => setTimeout(done, PERIOD_MS));
  }
}

byId("filter").addEventListener("input", () => { if (fleet) table(fleet.deployments); });
begin(follow);
