"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const SVG = "http://www.w3.org/2000/svg";
const PAGE = 30; // texts that are shown at once
const SYMBOL = { best: "◆", stop: "■", alarm: "▲" };
const NAMED = { best: "selected", stop: "stop", alarm: "alarm" };

function h(tag, attributes = {}, ...children) {
  const svg = "svg g path line rect circle text polygon title".split(" ").includes(tag);
  const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}
function number(value) {
  if (value == null) return "–";
  return Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
}
const arrow = (mode) => (mode === "max" ? " ↑" : mode === "min" ? " ↓" : "");
const visible = (text) => text.replace(/[\0-\x08\x0b-\x1f]/g, (c) => String.fromCodePoint(0x2400 + c.charCodeAt(0)));
const select = (label, options, value, change) => h("label", {}, label + " ", h("select", { name: label, onchange: (e) => change(e.target.value) },
  ...options.map(([v, name]) => h("option", { value: v, selected: String(v) === String(value) }, name))));

// Tips, on hover and on focus
function showTip(element, text) {
  const box = element.getBoundingClientRect();
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8)) + "px";
  const below = box.bottom + 8;
  tip.style.top = (below + tip.offsetHeight > innerHeight ? Math.max(8, box.top - tip.offsetHeight - 8) : below) + "px";
}
const hideTip = () => { tip.hidden = true; };
function withTip(element, text) {
  for (const event of ["mouseenter", "focus"]) element.addEventListener(event, () => showTip(element, text));
  for (const event of ["mouseleave", "blur"]) element.addEventListener(event, hideTip);
  return element;
}
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
addEventListener("scroll", hideTip, { passive: true });

// Charts
function ticks(low, high) {
  const raw = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(+at.toPrecision(10));
  return found;
}
function frame(xs, ys, whole) {
  const left = 46, right = 348, top = 22, bottom = 178;
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  if (x0 === x1) { x0 -= 1; x1 += 1; }
  const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 0.1;
  y0 -= pad; y1 += pad;
  if (!whole) { const side = (x1 - x0) * 0.06; x0 -= side; x1 += side; }
  const x = (value) => left + ((value - x0) / (x1 - x0)) * (right - left);
  const y = (value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - top);
  const svg = h("svg", { viewBox: "0 0 360 200", role: "group", tabindex: "0" });
  for (const at of ticks(y0, y1)) svg.append(h("line", { x1: left, x2: right, y1: y(at), y2: y(at), class: "grid" }), h("text", { x: left - 5, y: y(at) + 3.5, class: "ytick" }, number(at)));
  for (const at of ticks(x0, x1)) if (!whole || Number.isInteger(at)) svg.append(h("text", { x: x(at), y: bottom + 15, class: "xtick" }, number(at)));
  return { svg, x, y, left, right, top, bottom, y0, y1 };
}
function lineChart(title, series, marks = [], bounds = []) {
  const figure = h("figure", {}, h("figcaption", {}, title));
  const points = series.flatMap((each) => each.points.filter((p) => p[1] != null));
  if (!points.length) { figure.append(h("p", { class: "note" }, series.some((s) => s.points.length) ? "NaN at every step" : "no value")); return figure; }
  const band = (p) => p.length > 3 && p[2] != null && p[3] != null;
  const f = frame(points.map((p) => p[0]).concat(marks.map((m) => m.step)), points.flatMap((p) => (band(p) ? [p[1], p[2], p[3]] : [p[1]])), true);
  const label = `${title}: ${series.map((s) => { const v = s.points.filter((p) => p[1] != null); return v.length ? `${s.name || ""} ${number(v[0][1])} at step ${v[0][0]} to ${number(v[v.length - 1][1])} at step ${v[v.length - 1][0]}` : ""; }).join("; ")}. Arrow keys move through the points.`;
  f.svg.setAttribute("aria-label", label);
  const area = (low, high) => { const a = Math.max(f.top, f.y(high)), b = Math.min(f.bottom, f.y(low)); if (b > a) f.svg.append(h("rect", { x: f.left, width: f.right - f.left, y: a, height: b - a, class: "refused" })); };
  if (bounds[0] != null) area(f.y0, bounds[0]);
  if (bounds[1] != null) area(bounds[1], f.y1);
  series.forEach((each, i) => {
    const shown = each.points.filter((p) => p[1] != null), banded = shown.filter(band);
    if (banded.length > 1) f.svg.append(h("polygon", { class: `band c${i % 6}`, points: banded.map((p) => `${f.x(p[0])},${f.y(p[2])}`).concat(banded.reverse().map((p) => `${f.x(p[0])},${f.y(p[3])}`)).join(" ") }));
    f.svg.append(h("path", { class: `line c${i % 6}`, d: shown.map((p, j) => `${j ? "L" : "M"}${f.x(p[0]).toFixed(1)},${f.y(p[1]).toFixed(1)}`).join("") }));
    if (shown.length <= 40) for (const p of shown) f.svg.append(h("circle", { class: `dot c${i % 6}`, cx: f.x(p[0]), cy: f.y(p[1]), r: 2.6 }));
  });
  const columns = {};
  for (const mark of marks) {
    const x = f.x(mark.step), at = (columns[mark.step] = (columns[mark.step] || 0) + 1) - 1;
    const words = `${NAMED[mark.kind]} at step ${mark.step}: ${mark.reason}`;
    f.svg.append(withTip(h("g", { class: `mark mark-${mark.kind}`, tabindex: "0", role: "img", "aria-label": words },
      at ? null : h("line", { x1: x, x2: x, y1: f.top, y2: f.bottom }), h("rect", { x: x + at * (x > f.right - 30 ? -13 : 13) - 7, y: 0, width: 14, height: f.top, class: "hit" }),
      h("text", { x: x + at * (x > f.right - 30 ? -13 : 13), y: f.top - 6 }, SYMBOL[mark.kind])), words));
  }
  const all = series.flatMap((each) => each.points.map((p) => ({ p, name: each.name })));
  let at = -1;
  const cursor = h("line", { class: "cursor", y1: f.top, y2: f.bottom, visibility: "hidden" });
  f.svg.append(cursor);
  const go = (step) => {
    const here = all.filter((each) => each.p[0] === step && each.p[1] != null);
    if (!here.length) return;
    for (const [k, v] of [["x1", f.x(step)], ["x2", f.x(step)], ["visibility", "visible"]]) cursor.setAttribute(k, v);
    const why = marks.filter((m) => m.step === step).map((m) => `\n${NAMED[m.kind]}: ${m.reason}`).join("");
    showTip(f.svg, `step ${step}: ` + here.map(({ p, name }) => `${name ? name + " " : ""}${number(p[1])}${band(p) ? ` (${number(p[2])} to ${number(p[3])})` : ""}`).join(", ") + why);
  };
  const leave = () => { cursor.setAttribute("visibility", "hidden"); hideTip(); };
  const steps = [...new Set(all.map((each) => each.p[0]))].sort((a, b) => a - b);
  f.svg.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move || event.target !== f.svg) return;
    event.preventDefault();
    at = Math.max(0, Math.min(steps.length - 1, at + move));
    go(steps[at]);
  });
  f.svg.addEventListener("mousemove", (event) => {
    if (event.target.closest(".mark")) return;
    const box = f.svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * 360;
    go(steps.reduce((a, b) => (Math.abs(f.x(b) - x) < Math.abs(f.x(a) - x) ? b : a)));
  });
  f.svg.addEventListener("mouseleave", leave);
  f.svg.addEventListener("blur", leave);
  figure.append(f.svg);
  if (series.length > 1) figure.append(h("p", { class: "legend" }, ...series.map((each, i) => h("span", { class: `key c${i % 6}` }, each.name + " "))));
  return figure;
}
function scatter(title, xName, yName, points, label) {
  const figure = h("figure", {}, h("figcaption", {}, title));
  const shown = points.filter((p) => p.x != null && p.y != null);
  if (!shown.length) { figure.append(h("p", { class: "note" }, "no value")); return figure; }
  const f = frame(shown.map((p) => p.x), shown.map((p) => p.y), false);
  f.svg.setAttribute("aria-label", `${title}, ${shown.length} points`);
  const line = shown.filter((p) => p.front).sort((a, b) => a.x - b.x);
  if (line.length > 1) f.svg.append(h("path", { class: "line c0", d: line.map((p, i) => `${i ? "L" : "M"}${f.x(p.x)},${f.y(p.y)}`).join("") }));
  for (const p of shown) {
    const words = label(p), enter = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); p.open(); } };
    const dot = h("circle", { cx: f.x(p.x), cy: f.y(p.y), r: 5, class: `dot ${p.best ? "chosen" : p.front ? "c0" : "faint"}`, tabindex: "0", role: "button", "aria-label": words, onclick: p.open, onkeydown: enter });
    f.svg.append(h("text", { x: f.x(p.x) + 7, y: f.y(p.y) - 6, class: "steptick" }, String(p.step)), withTip(dot, words));
  }
  figure.append(f.svg, h("p", { class: "axes" }, `→ ${xName}, ↑ ${yName}`));
  return figure;
}

// Texts
const cut = (text, most) => (text.length > most ? text.slice(0, most) + " …" : text);
function changed(before, after) { // words of `after`, and whether they are new, by the longest common subsequence
  const a = before.split(/\s+/).slice(0, 400), b = after.split(/(\s+)/), words = b.filter((_, i) => i % 2 === 0).slice(0, 400);
  const rows = Array.from({ length: a.length + 1 }, () => new Uint16Array(words.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = words.length - 1; j >= 0; j--) rows[i][j] = a[i] === words[j] ? rows[i + 1][j + 1] + 1 : Math.max(rows[i + 1][j], rows[i][j + 1]);
  const same = new Set();
  for (let i = 0, j = 0; i < a.length && j < words.length;) if (a[i] === words[j]) { same.add(j); i++; j++; } else if (rows[i + 1][j] >= rows[i][j + 1]) i++; else j++;
  return b.map((part, i) => [part, i % 2 === 0 && part !== "" && i / 2 < 400 && !same.has(i / 2)]);
}
function textBox(text, before) {
  const box = h("p", { class: "text", dir: "auto", tabindex: text.length > 600 ? 0 : null });
  let run = [];
  const flush = () => { if (run.length) box.append(h("mark", {}, run.join(""))); run = []; };
  for (const [part, isNew] of before == null ? [[text, false]] : changed(before, text)) {
    if (isNew) run.push(visible(part));
    else if (run.length && /^\s+$/.test(part)) run.push(part);
    else { flush(); box.append(visible(part)); }
  }
  flush();
  return text ? box : h("p", { class: "text note" }, "(empty)");
}
function spark(values, best) {
  const known = values.map((v, i) => [i, v]).filter(([, v]) => v != null);
  if (known.length < 2) return null;
  const low = Math.min(...known.map(([, v]) => v)), high = Math.max(...known.map(([, v]) => v));
  const at = ([i, v]) => `${3 + (i * 74) / (values.length - 1)},${19 - ((v - low) / (high - low || 1)) * 16}`;
  const svg = h("svg", { viewBox: "0 0 80 22", class: "spark", "aria-hidden": "true" }, h("path", { class: "line c0", d: "M" + known.map(at).join("L") }));
  if (best != null && values[best] != null) { const [x, y] = at([best, values[best]]).split(","); svg.append(h("circle", { class: "dot chosen", cx: x, cy: y, r: 3 })); }
  return svg;
}
function explanation(stored) {
  const box = h("div", { class: "explained" });
  for (const [name, each] of Array.isArray(stored) ? stored.map((e) => [e.aspect, e]) : Object.entries(stored)) {
    box.append(h("h5", {}, `${name} ${number(each.score)}`));
    if (each.reason) box.append(h("p", { class: "text", dir: "auto" }, visible(each.reason)));
    if (each.evaluators) box.append(h("table", {}, h("thead", {}, h("tr", {}, ...["evaluator", "score", "weight"].map((c) => h("th", { scope: "col" }, c)))), h("tbody", {}, ...each.evaluators.map((e) =>
      h("tr", {}, h("td", { dir: "auto" }, visible(e.left), h("mark", {}, visible(e.target)), visible(e.right)), h("td", {}, number(e.score)), h("td", {}, number(e.weight)))))));
    if (each.tokens) {
      const signs = Array.from(each.text), line = h("p", { class: "text", dir: "auto" });
      let end = 0;
      for (const t of each.tokens) {
        line.append(visible(signs.slice(end, t.start).join("")));
        const word = visible(signs.slice(Math.max(end, t.start), t.end).join("")), level = Math.max(0, Math.min(4, Math.round(t.value * 4)));
        line.append(t.counted ? withTip(h("span", { class: `a${level}`, tabindex: "0" }, word), `alignment ${number(t.value)}`) : h("span", { class: "left-out" }, word));
        end = Math.max(end, t.end);
      }
      line.append(visible(signs.slice(end).join("")));
      box.append(line);
    }
  }
  return box;
}
function textBrowser(root, run) {
  if (!run.texts.length) { root.append(h("p", { class: "note" }, "The run left no texts.")); return; }
  const state = { set: 0, query: "", label: "", at: -1, sort: "stored", of: 0, while: null, low: "", high: "", all: false };
  const controls = h("form", { class: "controls", "aria-label": "Filter and sort texts" + (data.runs.length > 1 ? ` of ${run.name}` : ""), onsubmit: (e) => e.preventDefault() }), count = h("p", { class: "meta", role: "status" }), list = h("div", { class: "items" });
  root.append(controls, count, list);
  let limit = PAGE;
  const set = () => run.texts[state.set] || run.texts[0];
  const change = (name) => (value) => { state[name] = value; limit = PAGE; if (name === "set") { Object.assign(state, { label: "", at: -1, of: set().proxy ?? 0, while: null }); build(); } else if (name === "sort") build(); draw(); };
  function build() {
    const t = set(), components = t.components.map((name, i) => [i, name + arrow(t.modes[i])]);
    const labels = [...new Set(t.items.map((item) => item.l))].filter(Boolean);
    const input = (name, label, type) => h("label", {}, label + " ", h("input", { type, value: state[name], step: "any", oninput: (e) => change(name)(e.target.value) }));
    controls.replaceChildren(...[
      run.texts.length > 1 && select("Texts of", run.texts.map((each, i) => [i, each.name]), state.set, (v) => change("set")(+v)),
      input("query", "Search", "search"),
      labels.length > 1 && select("Label", [["", "all"], ...labels.map((l) => [l, cut(l, 40)])], state.label, change("label")),
      select("At", [...t.columns.map((name, i) => [i, name]), [-1, "the last"]], state.at, (v) => change("at")(+v)),
      select("Sort", [["stored", "as stored"], ["gamed", "rose most while another fell"], ["up", "rose most since the start"], ["down", "fell most since the start"], ["high", "highest first"], ["low", "lowest first"]], state.sort, change("sort")),
      select("of", components, state.of, (v) => change("of")(+v)),
      state.sort === "gamed" && select("while this fell", components, state.while ?? t.held_out ?? 0, (v) => change("while")(+v)),
      input("low", "from", "number"), input("high", "to", "number"),
      h("label", {}, h("input", { type: "checkbox", checked: state.all, onchange: (e) => change("all")(e.target.checked) }), " all validations"),
    ].filter(Boolean));
  }
  function found() {
    const t = set(), last = t.columns.length - 1, at = state.at < 0 ? last : Math.min(state.at, last), query = state.query.toLowerCase();
    const value = (item, c = at, k = state.of) => item.s[c][k], rise = (item, k = state.of) => { const a = value(item, 0, k), b = value(item, at, k); return a == null || b == null ? null : (b - a) * (t.modes[k] === "min" ? -1 : 1); };
    const low = state.low === "" ? -Infinity : +state.low, high = state.high === "" ? Infinity : +state.high;
    let items = t.items.filter((item) => (!state.label || item.l === state.label)
      && (!query || item.p.toLowerCase().includes(query) || item.t.some((text) => text.toLowerCase().includes(query)))
      && ((low === -Infinity && high === Infinity) || (value(item) != null && value(item) >= low && value(item) <= high)));
    const spread = (k) => Math.sqrt(items.reduce((sum, item) => sum + (rise(item, k) || 0) ** 2, 0) / (items.length || 1)) || 1;
    const other = state.while ?? t.held_out ?? 0, spreads = state.sort === "gamed" ? [spread(state.of), spread(other)] : [];
    const rank = { up: (i) => rise(i), down: (i) => (rise(i) == null ? null : -rise(i)), high: (i) => value(i), low: (i) => (value(i) == null ? null : -value(i)),
      gamed: (i) => (rise(i) == null || rise(i, other) == null ? null : Math.min(rise(i) / spreads[0], -rise(i, other) / spreads[1])) }[state.sort];
    if (rank) items = items.map((item) => [rank(item), item]).sort((a, b) => (b[0] ?? -Infinity) - (a[0] ?? -Infinity)).map(([, item]) => item);
    return { t, at, items };
  }
  function body(t, at, item) {
    const last = t.columns.length - 1;
    const columns = state.all || last < 3 ? t.columns.map((_, i) => i) : [...new Set([0, t.best ?? 0, at, last])].sort((a, b) => a - b);
    return h("div", {}, item.p.length > 90 ? h("p", { class: "prompt", dir: "auto" }, visible(item.p)) : null,
      h("div", { class: "sparks" }, ...t.components.map((name, k) => { const curve = spark(item.s.map((s) => s[k]), t.best); return curve && h("span", {}, h("small", {}, name + arrow(t.modes[k]) + " "), curve); })),
      h("div", { class: "versions", tabindex: "0", role: "group", "aria-label": "Texts side by side" }, ...columns.map((c, i) => {
        const box = h("section", { class: c === t.best ? "selected" : "" }, h("h4", {}, t.columns[c] + (c === t.best ? " ◆" : "")), textBox(item.t[c], i ? item.t[columns[i - 1]] : null),
          h("p", { class: "values" }, ...t.components.map((name, k) => h("span", {}, `${name} ${item.s[c][k] == null ? "failed" : number(item.s[c][k])} `))));
        const stored = item.x && item.x[c];
        if (stored) { const button = h("button", { type: "button", "aria-expanded": "false", onclick: () => { const open = button.getAttribute("aria-expanded") === "true"; button.setAttribute("aria-expanded", String(!open)); if (open) button.nextSibling.remove(); else button.after(explanation(stored)); } }, "Explain"); box.append(button); }
        return box;
      })));
  }
  function draw() {
    const { t, at, items } = found();
    const texts = t.items.length * t.columns.length;
    count.textContent = `${items.length.toLocaleString("en")} of ${t.items.length.toLocaleString("en")} prompts` + (texts < t.total ? `; the file holds ${texts.toLocaleString("en")} of ${t.total.toLocaleString("en")} texts, half evenly spaced, half where the reward rose most while the held-out score fell` : "");
    list.replaceChildren(...items.slice(0, limit).map((item) => {
      const values = item.s.map((s) => s[state.of]);
      const details = h("details", {}, h("summary", {}, h("span", { class: "name", dir: "auto" }, visible(cut(item.p || item.t[0], 90))), item.l ? h("span", { class: "label" }, cut(item.l, 40)) : null,
        spark(values, t.best), h("span", { class: "change" }, `${number(values[0])} → ${number(values[at])}`)));
      details.addEventListener("toggle", () => { if (details.open && details.children.length < 2) details.append(body(t, at, item)); });
      return details;
    }));
    if (list.firstChild && limit === PAGE) { list.firstChild.open = true; }
    if (items.length > limit) list.append(h("button", { type: "button", onclick: () => { limit += PAGE; draw(); } }, `Show ${Math.min(PAGE, items.length - limit)} more`));
  }
  state.of = set().proxy ?? 0;
  if (run.marks.some((m) => m.kind === "alarm")) state.sort = "gamed";
  build();
  draw();
  root.at = (step) => { const t = set(), at = t.steps.indexOf(step); if (at >= 0) { change("at")(at); build(); } root.scrollIntoView(); };
}

// The page
const browsers = data.runs.map((run, r) => { const root = document.querySelector(`[data-texts="${r}"]`); textBrowser(root, run); return root; });
for (const root of document.querySelectorAll("[data-charts]")) {
  const run = data.runs[root.dataset.charts], groups = root.dataset.groups.split(" ");
  const charts = run.charts.filter((c) => groups.includes(c.group));
  root.append(...charts.map((c) => lineChart(c.key + arrow(c.mode), [{ points: c.points }], run.marks, c.bounds)));
  if (!charts.length) root.append(h("p", { class: "note" }, "nothing was logged"));
}
for (const root of document.querySelectorAll("[data-other]")) {
  const run = data.runs[root.dataset.other], others = run.charts.filter((c) => c.group === "other");
  root.hidden = !others.length;
  root.addEventListener("toggle", () => root.append(h("div", { class: "charts" }, ...others.map((c) => lineChart(c.key, [{ points: c.points }], [], [])))), { once: true });
}
for (const root of document.querySelectorAll("[data-front]")) {
  const run = data.runs[root.dataset.front], front = run.front;
  if (front) root.append(scatter("Pareto front", front.x + arrow(front.modes[front.x]), front.y + arrow(front.modes[front.y]), front.points.map((p) => ({ ...p, open: () => browsers[root.dataset.front].at && browsers[root.dataset.front].at(p.step) })), (p) => `step ${p.step}: ${number(p.x)}, ${number(p.y)}${p.best ? ", selected" : p.front ? ", on the front" : ""}`));
}
for (const root of document.querySelectorAll("[data-overlay]")) {
  const keys = data.runs[0].charts.filter((c) => ["reward", "score", "KL"].includes(c.group) && data.runs.every((run) => run.charts.some((o) => o.key === c.key)));
  root.append(...keys.map((c) => lineChart(c.key + arrow(c.mode), data.runs.map((run) => ({ name: run.name, points: run.charts.find((o) => o.key === c.key).points.map((p) => p.slice(0, 2)) })))));
}
for (const link of document.querySelectorAll("[data-step]")) link.addEventListener("click", (event) => { const root = browsers[link.dataset.run]; if (root.at) { event.preventDefault(); root.at(+link.dataset.step); } });
addEventListener("beforeprint", () => { for (const each of document.querySelectorAll(".items > details:not([open])")) each.open = true; });
