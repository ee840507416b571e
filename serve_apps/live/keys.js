// What the pages have in common: nodes by id, the key, the state of the connection, and asking again.

const byId = (name) => document.getElementById(name);
const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const make = (name, text, kind) => { const node = document.createElement(name); if (text !== undefined) node.textContent = text; if (kind) node.className = kind; return node; };
let heard = 0, key = "";

// The key travels in a header: EventSource can't send one.
const headers = () => key ? { authorization: `Bearer ${key}` } : {};
// The answer at a path; null where it needs another key, which is asked for.
async function asked(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) { login(answer.status === 403 ? "This key may not observe." : key ? "Unknown key." : ""); return null; }
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  byId("login").hidden = true; byId("main").hidden = false;
  return answer;
}
function linked(fault) {
  document.body.classList.toggle("stale", Boolean(fault));
  const node = byId("link"); node.className = fault ? "lost" : "";
  const time = new Date(heard).toLocaleTimeString();
  set(node, fault ? `${fault}${heard ? `; last heard at ${time}` : ""}` : `live, ${time}`);
}
function login(text) { set(byId("refused"), text); byId("login").hidden = false; byId("main").hidden = true; set(byId("verdict"), "API key needed"); set(byId("link"), ""); byId("key").focus(); }
// `follow` again and again, later after each failure; until it says false.
async function run(follow) {
  for (let wait = 1; ; wait = Math.min(10, 2 * wait)) {
    const begun = Date.now();
    try { if (!(await follow())) return; } catch (error) { linked(error.message === "Failed to fetch" ? "no answer" : error.message); }
    if (Date.now() - begun > 20000) wait = 1;
    await new Promise((done) => setTimeout(done, 1000 * wait));
  }
}
function begin(follow) {
  byId("login").addEventListener("submit", (event) => { event.preventDefault(); key = byId("key").value; sessionStorage.setItem("headway-key", key); run(follow); });
  const given = /[#&]key=([^&]+)/.exec(location.hash);
  if (given) { sessionStorage.setItem("headway-key", decodeURIComponent(given[1])); history.replaceState(null, "", location.pathname); }
  key = sessionStorage.getItem("headway-key") || "";
  run(follow);
}
