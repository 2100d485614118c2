"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 30; // prompts that are shown at once
const SYMBOL = { best: "◆", stop: "■", alarm: "▲" };

function h(tag, attributes = {}, ...children) {
  const svg = "svg g path line rect circle text polygon title".split(" ").includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter(Boolean));
  return element;
}
const number = (value) => (value == null ? "–" : Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4)));
const arrow = (mode) => (mode === "max" ? " ↑" : mode === "min" ? " ↓" : "");
const visible = (text) => text.replace(/[\0-\x08\x0b-\x1f]/g, (c) => String.fromCodePoint(0x2400 + c.charCodeAt(0)));
const cut = (text, most) => (text.length > most ? text.slice(0, most) + " …" : text);

// Curves
function ticks(low, high) {
  const raw = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= raw), found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(+at.toPrecision(10));
  return found;
}
function chart({ key, mode, points, bounds }, marks) {
  const known = points.filter((p) => p[1] != null), figure = h("figure", {}, h("figcaption", {}, key + arrow(mode)));
  if (!known.length) { figure.append(h("p", { class: "note" }, "no value")); return figure; }
  const banded = known.filter((p) => p[2] != null && p[3] != null), [left, right, top, bottom] = [46, 348, 22, 178];
  const xs = [...known.map((p) => p[0]), ...marks.map((m) => m.step)], ys = known.flatMap((p) => p.slice(1).filter((v) => v != null));
  let [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  if (x0 === x1) { x0 -= 1; x1 += 1; }
  const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 0.1;
  y0 -= pad; y1 += pad;
  const x = (v) => left + ((v - x0) / (x1 - x0)) * (right - left), y = (v) => bottom - ((v - y0) / (y1 - y0)) * (bottom - top);
  const [first, last] = [known[0], known[known.length - 1]];
  const svg = h("svg", { viewBox: "0 0 360 200", role: "img", "aria-label": `${key}: ${number(first[1])} at step ${first[0]} to ${number(last[1])} at step ${last[0]}` });
  for (const at of ticks(y0, y1)) svg.append(h("line", { x1: left, x2: right, y1: y(at), y2: y(at), class: "grid" }), h("text", { x: left - 5, y: y(at) + 3.5, class: "ytick" }, number(at)));
  for (const at of ticks(x0, x1)) if (Number.isInteger(at)) svg.append(h("text", { x: x(at), y: bottom + 15, class: "xtick" }, number(at)));
  const shade = (low, high) => { const a = Math.max(top, y(high)), b = Math.min(bottom, y(low)); if (b > a) svg.append(h("rect", { x: left, width: right - left, y: a, height: b - a, class: "refused" })); };
  if (bounds[0] != null) shade(y0, bounds[0]);
  if (bounds[1] != null) shade(bounds[1], y1);
  const path = (list, k) => list.map((p) => `${x(p[0]).toFixed(1)},${y(p[k]).toFixed(1)}`);
  if (banded.length > 1) svg.append(h("polygon", { class: "band", points: [...path(banded, 2), ...path(banded.slice().reverse(), 3)].join(" ") }));
  svg.append(h("path", { class: "line", d: "M" + path(known, 1).join("L") }));
  for (const p of known) svg.append(h("circle", { class: "dot", cx: x(p[0]), cy: y(p[1]), r: known.length > 40 ? 1.2 : 2.6 },
    h("title", {}, `step ${p[0]}: ${number(p[1])}` + (p[2] != null ? ` (${number(p[2])} to ${number(p[3])})` : ""))));
  marks.forEach((m, i) => { const at = x(m.step), side = marks.slice(0, i).filter((o) => o.step === m.step).length * (at > 300 ? -13 : 13);
    svg.append(h("g", { class: `mark mark-${m.kind}` }, h("title", {}, `${m.kind} at step ${m.step}: ${m.reason}`), h("line", { x1: at, x2: at, y1: top, y2: bottom }), h("text", { x: at + side, y: top - 6 }, SYMBOL[m.kind]))); });
  figure.append(svg);
  return figure;
}

// Texts
function changed(before, after) { // words of `after`, and whether they are new, by the longest common subsequence
  const a = before.split(/\s+/).slice(0, 400), b = after.split(/(\s+)/), words = b.filter((_, i) => i % 2 === 0).slice(0, 400);
  const rows = Array.from({ length: a.length + 1 }, () => new Uint16Array(words.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = words.length - 1; j >= 0; j--) rows[i][j] = a[i] === words[j] ? rows[i + 1][j + 1] + 1 : Math.max(rows[i + 1][j], rows[i][j + 1]);
  const same = new Set();
  for (let i = 0, j = 0; i < a.length && j < words.length;) if (a[i] === words[j]) { same.add(j); i++; j++; } else if (rows[i + 1][j] >= rows[i][j + 1]) i++; else j++;
  return b.map((part, i) => [part, i % 2 === 0 && part !== "" && i / 2 < 400 && !same.has(i / 2)]);
}
function textBox(text, before) {
  if (!text) return h("p", { class: "text note" }, "(empty)");
  const box = h("p", { class: "text", dir: "auto", tabindex: text.length > 600 ? 0 : null });
  let run = [];
  const flush = () => { if (run.length) box.append(h("mark", {}, run.join(""))); run = []; };
  for (const [part, isNew] of before == null ? [[text, false]] : changed(before, text)) {
    if (isNew || (run.length && /^\s+$/.test(part))) run.push(visible(part));
    else { flush(); box.append(visible(part)); }
  }
  flush();
  return box;
}
function textBrowser(root) {
  if (!data.texts.length) { root.append(h("p", { class: "note" }, "The run left no texts.")); return; }
  const state = { set: 0, query: "", sort: "stored", all: false };
  let limit = PAGE;
  const change = (name, value) => { state[name] = value; limit = PAGE; draw(); };
  const select = (label, name, options) => h("label", {}, label + " ", h("select", { name, onchange: (e) => change(name, e.target.value) }, ...options.map(([v, text]) => h("option", { value: v, selected: v === state[name] }, text))));
  const names = [...new Set(data.texts.flatMap((each) => each.components))];
  const sorts = [["stored", "as stored"], ...names.flatMap((n) => [[`+${n}`, `${n} rose`], [`-${n}`, `${n} fell`]])];
  const count = h("p", { class: "meta", role: "status" }), list = h("div", { class: "items" });
  root.append(h("form", { class: "controls", "aria-label": "Filter of texts", onsubmit: (e) => e.preventDefault() },
    data.texts.length > 1 ? select("Texts of", "set", data.texts.map((each, i) => [i, each.name])) : null,
    h("label", {}, "Search ", h("input", { type: "search", oninput: (e) => change("query", e.target.value.toLowerCase()) })), select("First where", "sort", sorts),
    h("label", {}, h("input", { type: "checkbox", onchange: (e) => change("all", e.target.checked) }), " all validations")), count, list);
  function draw() {
    const t = data.texts[state.set], last = t.columns.length - 1, k = t.components.indexOf(state.sort.slice(1));
    const rise = (item) => { const [a, b] = [item.s[0][k], item.s[last][k]]; return a == null || b == null ? -Infinity : (state.sort[0] === "-" ? a - b : b - a); };
    const items = t.items.filter((item) => (item.p + item.l + item.t.join("\n")).toLowerCase().includes(state.query));
    if (k >= 0) items.sort((a, b) => rise(b) - rise(a));
    const columns = state.all || last < 3 ? t.columns.map((_, i) => i) : [...new Set([0, t.best ?? 0, last])].sort((a, b) => a - b);
    count.textContent = `${items.length.toLocaleString("en")} of ${t.total.toLocaleString("en")} prompts` + (t.items.length < t.total ? `; the file holds ${t.items.length.toLocaleString("en")}, evenly spaced` : "");
    const body = (item) => h("div", { class: "versions", tabindex: "0", role: "group", "aria-label": "Texts side by side" }, ...columns.map((c, i) =>
      h("section", { class: c === t.best ? "selected" : "" }, h("h3", {}, t.columns[c] + (c === t.best ? " ◆" : "")), textBox(item.t[c], i ? item.t[columns[i - 1]] : null),
        h("p", { class: "values" }, ...t.components.map((name, j) => h("span", {}, `${name} ${item.s[c][j] == null ? "failed" : number(item.s[c][j])} `))),
        ...Object.entries(item.r[c]).map(([name, reason]) => reason && h("p", { class: "values text", dir: "auto" }, `${name}: `, visible(reason))))));
    list.replaceChildren(...items.slice(0, limit).map((item, i) => {
      const details = h("details", { open: i === 0 }, h("summary", { dir: "auto" }, visible(cut(item.p || item.t[0], 200)) + " ", item.l ? h("span", { class: "label" }, cut(item.l, 40)) : null));
      details.addEventListener("toggle", () => { if (details.open && details.children.length < 2) details.append(body(item)); });
      return details;
    }));
    if (items.length > limit) list.append(h("button", { type: "button", onclick: () => { limit += PAGE; draw(); } }, `Show ${Math.min(PAGE, items.length - limit)} more`));
  }
  draw();
}

textBrowser(document.getElementById("texts"));
for (const root of document.querySelectorAll("[data-groups]")) {
  const charts = data.charts.filter((c) => root.dataset.groups.split(" ").includes(c.group));
  root.append(...charts.map((c) => chart(c, c.group === "other" ? [] : data.marks)));
  if (!charts.length) root.append(h("p", { class: "note" }, "nothing was logged"));
}
addEventListener("beforeprint", () => { for (const each of document.querySelectorAll(".items > details:not([open])")) each.open = true; });
