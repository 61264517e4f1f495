"use strict";
addEventListener("error", (event) => { document.body.dataset.error = event.message; });
const DATA = JSON.parse(document.getElementById("data").textContent);
const TOTAL = DATA.kernel_ns || 1, TIME = DATA.time_ns || 1;
const OPS = DATA.operators, BY_NAME = new Map(DATA.operators.map((op) => [op.name, op])), ENGINES = ["tensor", "vector", "scalar", "gpsimd", "dma", "collective", "sync"];
const NAMES = {tensor: "TensorE", vector: "VectorE", scalar: "ScalarE", gpsimd: "GpSimdE", dma: "DMA", collective: "collectives",
  sync: "sync", latency: "latency", wait: "wait"};
const SVG = "http://www.w3.org/2000/svg";
const tip = document.getElementById("tip");

// What follows builds nodes from data, never markup: names in a file are no part of the page.
function node(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) made.append(child);
  return made;
}
const put = (id, ...children) => document.getElementById(id).append(...children.flat());
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || "#888";
const short = (source) => source ? source.replace(/\\/g, "/").split("/").pop() : "";
const percent = (share, digits = 1) => (100 * share).toFixed(share >= 0.995 || digits === 0 ? 0 : digits) + " %";
function scaled(value, units) {
  for (const [scale, unit] of units) if (Math.abs(value) >= scale) return Number((value / scale).toPrecision(3)).toLocaleString("en") + " " + unit;
  return Number(value.toPrecision(3)).toLocaleString("en") + " " + units[units.length - 1][1];
}
const time = (ns) => ns ? scaled(ns, [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]) : "0";
const bytes = (n) => n ? scaled(n, [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]) : "0";
const flops = (n) => n ? scaled(n, [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]) : "";
const count = (n) => Math.round(n).toLocaleString("en");
const kind = (engine) => NAMES[engine] ? engine : "dma";

function tips(element, text) {
  element.addEventListener("pointermove", (event) => showTip(typeof text === "function" ? text(event) : text, event.clientX, event.clientY));
  element.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  return element;
}
function showTip(text, x, y) {
  if (!text) { tip.style.display = "none"; return; }
  tip.textContent = text;
  tip.style.display = "block";
  tip.style.left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(y + 14, innerHeight - tip.offsetHeight - 8) + "px";
}
function opcodeOf(op) {
  const kernel = (op.kernels[0] || "").split(".").slice(1).join(".");
  return op.flops > 0 && kernel && kernel !== op.opcode && kernel !== "map" ? `${op.opcode} in ${kernel}` : op.opcode;
}
function about(op) {
  const busy = Object.entries(op.busy_ns).map(([engine, ns]) => `${NAMES[engine] || engine} ${time(ns)}`).join(", ");
  return `${op.name}  ${op.opcode} ${op.shape}\n${op.source || op.op_name}\n${time(op.critical_ns)} on the critical path (${percent(op.critical_ns / TIME)})\nbusy: ${busy}\nbound by ${op.bound}`;
}

// Tables that sort by their heads and filter by a word.
function table(id, columns, rows, options = {}) {
  const state = {column: options.sort ?? 0, down: true, word: "", shown: options.limit || 200};
  const head = node("tr"), body = node("tbody");
  const caption = node("caption", {class: "visually-hidden"}, options.caption || "");
  columns.forEach((column, index) => {
    const button = node("button", {type: "button", title: column.title || null, onclick: () => {
      state.down = state.column === index ? !state.down : !column.text;
      state.column = index; draw();
    }}, column.head);
    head.append(node("th", {scope: "col", class: column.text ? null : "n"}, button));
  });
  const more = node("button", {type: "button", onclick: () => { state.shown = Infinity; draw(); }}, "Show all");
  const status = node("span", {role: "status", class: "soft"});
  function draw() {
    [...head.children].forEach((cell, index) =>
      cell.setAttribute("aria-sort", index !== state.column ? "none" : state.down ? "descending" : "ascending"));
    const key = columns[state.column].key, sign = state.down ? -1 : 1;
    const words = state.word.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => words.every((word) => options.words(row).toLowerCase().includes(word)));
    found.sort((a, b) => { const x = key(a), y = key(b); return sign * (x < y ? -1 : x > y ? 1 : 0); });
    body.replaceChildren(...found.slice(0, state.shown).map((row) => {
      const line = node("tr", {"data-name": row.name || null}, columns.map((column) => {
        const shown = column.show(row);
        return node("td", {class: column.text ? "long" : "n", title: column.text ? String(column.full ? column.full(row) : column.key(row)) : null}, shown);
      }));
      if (options.mark && row.name === marked) line.classList.add("marked");
      return line;
    }));
    more.hidden = found.length <= state.shown;
    status.textContent = `${Math.min(found.length, state.shown)} of ${found.length}`;
  }
  if (options.words) {
    const search = node("input", {type: "search", id: id + "-filter", placeholder: options.hint || "filter",
      oninput: (event) => { state.word = event.target.value; draw(); }});
    put(id, node("div", {class: "tools"}, node("label", {for: id + "-filter"}, "Filter"), search, status, more));
    options.search = (word) => { search.value = word; state.word = word; draw(); };
  } else { options.words = () => ""; }
  put(id, node("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": options.caption || id},
    node("table", {}, caption, node("thead", {}, head), body)));
  draw();
  return {draw, options};
}
let marked = null, operators = null;
function choose(name) {
  marked = name;
  operators.options.search(name);
  document.getElementById("operators").scrollIntoView({behavior: "smooth"});
}
function bar(parts, whole) {
  const pieces = Object.entries(parts).filter(([, ns]) => ns > 0).map(([engine, ns]) =>
    node("i", {style: `width:${100 * ns / whole}%;background:var(--${NAMES[engine] && engine !== "latency" ? engine : "wait"})`}));
  const text = Object.entries(parts).filter(([, ns]) => ns > 0).map(([engine, ns]) => `${NAMES[engine] || engine} ${time(ns)}`).join(", ");
  return node("span", {class: "bar", role: "img", "aria-label": text, title: text}, pieces);
}
function legend(names) {
  return node("ul", {class: "legend"}, names.map((name) => node("li", {}, node("i", {style: `background:var(--${name})`}), NAMES[name] || name)));
}

// Verdict
function verdict() {
  const s = DATA.summary;
  const tiles = [
    ["time", time(TIME), null, `${time(TOTAL)} without preamble and postamble`],
    ["TensorE of peak", percent(s.mfu_inst_estimated_percent), s.mfu_inst_estimated_percent, "work weighted by element type"],
    ["HBM of bandwidth", percent(s.mbu_estimated_percent), s.mbu_estimated_percent, `${s.hbm_bandwidth_gbps.toFixed(0)} GB/s`],
    ["DMA engines busy", percent(s.dma_active_time_percent), s.dma_active_time_percent, `${bytes(s.dma_total_bytes)} in ${count(s.dma_descriptor_count)} runs`],
    ...["tensor", "vector", "scalar", "gpsimd"].map((engine) => [NAMES[engine] + " active", percent(s[engine + "_engine_active_time_percent"]),
      s[engine + "_engine_active_time_percent"], count(s[engine + "_engine_instruction_count"]) + " instructions"]),
  ];
  put("tiles", tiles.map(([name, value, share, more]) => node("div", {class: "tile"}, node("span", {}, name), node("b", {}, value),
    node("span", {}, more), share === null ? null : node("div", {class: "meter"}, node("i", {style: `width:${Math.min(100, 100 * share)}%`})))));
  put("sentences", DATA.verdict.slice(0, 3).map((text) => node("p", {class: "verdict"}, text)));
  put("sentences", DATA.notices.map((text) => node("p", {class: "notice"}, text)));
  put("finding-list", DATA.findings.slice(0, 12).map((finding) => node("li", {},
    node("div", {class: "cost"}, percent(finding.share, 0), node("small", {}, time(finding.cost_ns))),
    node("div", {}, node("p", {}, finding.subject ? node("button", {type: "button", class: "mono", onclick: () => choose(finding.subject)}, finding.subject) : null,
      finding.source ? node("span", {class: "mono", title: finding.source}, " " + short(finding.source) + " ") : null,
      node("span", {}, (finding.subject ? " — " : "") + finding.cause + ".")), node("p", {class: "remedy"}, finding.remedy)))));
  if (!DATA.findings.length) put("finding-list", node("li", {}, node("div"), "Nothing stands out: no single cause takes 1 % of the time."));
}

// Treemap by source line: squarified, so that areas can be compared.
function treemap() {
  const width = 1280, height = 330, all = DATA.sources.filter((row) => row.critical_ns > 0);
  const rows = all.slice(0, 60), rest = all.slice(60);
  if (rest.length) rows.push({line: `${rest.length} more lines`, critical_ns: rest.reduce((sum, row) => sum + row.critical_ns, 0), operators: [], busy_ns: {}, bound: ""});
  const whole = rows.reduce((sum, row) => sum + row.critical_ns, 0) || 1;
  const picture = node("svg:svg", {viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Time on the critical path by source line"});
  for (const [row, place] of squarified(rows, (row) => row.critical_ns, [0, 0, width, height])) cell(picture, row, place, whole);
  put("treemap", picture, legend(ENGINES.filter((engine) => rows.some((row) => busiest(row.busy_ns) === engine))));
  table("source-table", [
    {head: "Source line", text: true, key: (row) => row.line, show: (row) => node("span", {class: "mono"}, short(row.line))},
    {head: "Time", key: (row) => row.critical_ns, show: (row) => time(row.critical_ns)},
    {head: "Share", key: (row) => row.critical_ns, show: (row) => percent(row.critical_ns / TIME)},
    {head: "Busy", key: (row) => Math.max(0, ...Object.values(row.busy_ns)), show: (row) => bar(row.busy_ns, Object.values(row.busy_ns).reduce((a, b) => a + b, 0))},
    {head: "Bound by", text: true, key: (row) => row.bound, show: (row) => row.bound},
    {head: "Ops", key: (row) => row.operators.length, show: (row) => count(row.operators.length)},
  ], DATA.sources, {sort: 1, words: (row) => row.line, caption: "Time by source line", hint: "file or line"});
}
function squarified(rows, weight, box) {
  const whole = rows.reduce((sum, row) => sum + weight(row), 0) || 1, placed = [];
  let left = rows.map((row) => ({row, area: weight(row) / whole * box[2] * box[3]}));
  const worst = (line, side) => { const sum = line.reduce((a, b) => a + b.area, 0); return Math.max(...line.map((x) => Math.max(side * side * x.area / sum ** 2, sum ** 2 / (side * side * x.area)))); };
  while (left.length) {
    const side = Math.min(box[2], box[3]); const line = [left[0]];
    while (line.length < left.length && worst([...line, left[line.length]], side) <= worst(line, side)) line.push(left[line.length]);
    const sum = line.reduce((a, b) => a + b.area, 0), thick = side ? sum / side : 0; let at = 0;
    for (const {row, area} of line) {
      const long = thick ? area / thick : 0;
      placed.push([row, box[2] >= box[3] ? [box[0], box[1] + at, thick, long] : [box[0] + at, box[1], long, thick]]); at += long;
    }
    box = box[2] >= box[3] ? [box[0] + thick, box[1], box[2] - thick, box[3]] : [box[0], box[1] + thick, box[2], box[3] - thick];
    left = left.slice(line.length);
  }
  return placed;
}
// The ops of a line that has room for them: what a line that many layers share is made of.
function inside(group, row, [x, y, w, h]) {
  const mine = row.operators.map((name) => BY_NAME.get(name)).filter((op) => op && op.critical_ns > 0);
  if (mine.length < 2 || w < 170 || h < 110) return;
  const shown = mine.slice(0, 80), rest = mine.slice(80).reduce((sum, op) => sum + op.critical_ns, 0);
  if (rest) shown.push({name: `${mine.length - 80} more`, critical_ns: rest, busy_ns: {}, kernels: [], opcode: "", shape: "", source: row.line, bound: ""});
  for (const [op, [a, b, c, d]] of squarified(shown, (op) => op.critical_ns, [x + 5, y + 58, w - 10, h - 63])) {
    const box = node("svg:rect", {x: a + 0.75, y: b + 0.75, width: Math.max(0, c - 1.5), height: Math.max(0, d - 1.5), rx: 2, fill: "var(--card)", "fill-opacity": 0.16});
    group.append(tips(box, about(op)));
    if (c > 62 && d > 18) group.append(clipped(op.name, a + 5, b + 14, c - 8, 400));
    if (c > 62 && d > 34) group.append(clipped(time(op.critical_ns), a + 5, b + 29, c - 8, 400));
  }
}
const busiest = (busy) => Object.entries(busy).sort((a, b) => b[1] - a[1])[0]?.[0] || "dma";
function cell(picture, row, [x, y, w, h], whole) {
  const text = `${short(row.line)}: ${time(row.critical_ns)}, ${percent(row.critical_ns / whole)}${row.bound ? ", bound by " + row.bound : ""}`;
  const pick = () => { if (row.operators.length) { operators.options.search(short(row.line)); document.getElementById("operators").scrollIntoView({behavior: "smooth"}); } };
  const group = node("svg:g", {tabindex: "0", role: "button", "aria-label": text, style: "cursor:pointer", onclick: pick,
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } }},
  node("svg:rect", {x: x + 1, y: y + 1, width: Math.max(0, w - 2), height: Math.max(0, h - 2), rx: 3, fill: `var(--${kind(busiest(row.busy_ns))})`}));
  if (w > 70 && h > 20) group.append(clipped(short(row.line), x + 8, y + 18, w - 14, 600));
  if (w > 70 && h > 38) group.append(clipped(`${time(row.critical_ns)}  ${percent(row.critical_ns / whole)}`, x + 8, y + 34, w - 14, 400));
  if (w > 120 && h > 54 && row.bound) group.append(clipped(row.bound, x + 8, y + 50, w - 14, 400));
  const behind = group.firstChild;
  inside(group, row, [x, y, w, h]);
  picture.append(group); tips(behind, `${row.line}\n${text.split(": ").slice(1).join(": ")}\n${row.operators.slice(0, 8).join(", ")}`);
}
function clipped(text, x, y, room, weight) {
  const letters = Math.floor(room / 6.6);
  return node("svg:text", {x, y, style: `pointer-events:none;fill:var(--card);font-weight:${weight};font-size:12.5px`}, text.length > letters ? text.slice(0, Math.max(1, letters - 1)) + "…" : text);
}

// Ops
function operatorTable() {
  operators = table("operator-table", [
    {head: "Op", text: true, key: (op) => op.name, show: (op) => node("span", {class: "mono"}, op.name)},
    {head: "Opcode", text: true, title: "with the kernel that computes it, where that says more", key: (op) => opcodeOf(op), show: (op) => opcodeOf(op)},
    {head: "Shape", text: true, key: (op) => op.shape, show: (op) => node("span", {class: "mono"}, op.shape)},
    {head: "Source", text: true, key: (op) => short(op.source), full: (op) => op.source || op.op_name, show: (op) => node("span", {class: "mono"}, short(op.source) || op.op_name)},
    {head: "Time", title: "on the critical path", key: (op) => op.critical_ns, show: (op) => op.critical_ns ? time(op.critical_ns) : "hidden"},
    {head: "Share", key: (op) => op.critical_ns, show: (op) => percent(op.critical_ns / TIME)},
    {head: "Spent on", title: "what the critical path is in", key: (op) => Math.max(0, ...Object.values(op.critical_parts)), show: (op) => bar(op.critical_parts, op.critical_ns || 1)},
    {head: "Bound by", text: true, key: (op) => op.bound, show: (op) => op.bound},
    {head: "Roofline", title: "time at the roofline, of its time", key: (op) => op.critical_ns ? op.roofline_share : 2, show: (op) => op.critical_ns ? percent(op.roofline_share, 0) : ""},
    {head: "FLOPs", key: (op) => op.flops, show: (op) => flops(op.flops)},
    {head: "Bytes", title: "through the DMA engines", key: (op) => op.dma_bytes, show: (op) => op.dma_bytes ? bytes(op.dma_bytes) : ""},
    {head: "Run", title: "mean bytes of a contiguous run of DMA", key: (op) => op.run_bytes, show: (op) => op.run_bytes ? bytes(op.run_bytes) : ""},
    {head: "Busy", title: "of its busiest engine", key: (op) => Math.max(0, ...Object.values(op.busy_ns)), show: (op) => `${NAMES[op.engine] || op.engine} ${time(op.busy_ns[op.engine] || 0)}`},
    {head: "Instructions", key: (op) => op.instructions, show: (op) => count(op.instructions)},
    {head: "Kernel", text: true, key: (op) => op.kernels.join(" "), show: (op) => op.kernels.join(" ")},
    {head: "Loops", text: true, title: "trip counts of its hardware loops", key: (op) => op.schedule, show: (op) => op.schedule || "unrolled"},
    {head: "Products", text: true, title: "element types that TensorE multiplies", key: (op) => Object.keys(op.product_types).join(" "), show: (op) => Object.keys(op.product_types).join(" ")},
  ], OPS, {sort: 4, mark: true, caption: "HLO operations", hint: "op, opcode, source, bound, engine …",
    words: (op) => [op.name, op.opcode, op.shape, op.source, op.op_name, op.bound, op.engine, op.kernels.join(" ")].join(" ")});
  put("operator-table", legend([...ENGINES.slice(0, 6), "wait"]));
}

// Roofline
function roofline() {
  const points = OPS.filter((op) => op.flops > 0 && op.hbm_bytes > 0 && op.critical_ns > 0);
  if (!points.length) { put("roofline-chart", node("p", {class: "soft"}, "No op multiplies on TensorE and reads HBM on the critical path.")); return; }
  const peak = DATA.peak_flops_per_ns, rate = DATA.hbm_bytes_per_ns, W = 620, H = 360, L = 58, R = 14, T = 12, B = 40;
  const at = points.map((op) => [op.flops / op.hbm_bytes, op.flops / op.critical_ns]);
  const lx = Math.floor(Math.log10(Math.min(1, ...at.map((p) => p[0])))), hx = Math.ceil(Math.log10(Math.max(1000, ...at.map((p) => p[0]))));
  const ly = Math.floor(Math.log10(Math.min(peak / 1e4, ...at.map((p) => p[1])))), hy = Math.log10(peak * 1.6);
  const X = (v) => L + (Math.log10(v) - lx) / (hx - lx) * (W - L - R), Y = (v) => H - B - (Math.log10(v) - ly) / (hy - ly) * (H - T - B);
  const picture = node("svg:svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Roofline: ${points.length} ops with products, by FLOPs a byte of HBM and FLOPs a second`});
  for (let e = lx; e <= hx; e++) picture.append(node("svg:line", {class: "grid", x1: X(10 ** e), x2: X(10 ** e), y1: T, y2: H - B}), node("svg:text", {class: "soft", x: X(10 ** e), y: H - B + 16, "text-anchor": e === hx ? "end" : "middle"}, (10 ** e).toLocaleString("en")));
  for (let e = Math.ceil(ly); e <= hy; e++) picture.append(node("svg:line", {class: "grid", x1: L, x2: W - R, y1: Y(10 ** e), y2: Y(10 ** e)}), node("svg:text", {class: "soft", x: L - 6, y: Y(10 ** e) + 4, "text-anchor": "end"}, scaled(10 ** e * 1e9, [[1e12, "T"], [1e9, "G"], [1e6, "M"]])));
  const ridge = peak / rate, from = Math.max(10 ** lx, 10 ** ly / rate);
  picture.append(node("svg:polyline", {points: [[from, from * rate], [ridge, peak], [10 ** hx, peak]].map(([x, y]) => `${X(x)},${Y(y)}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 2}));
  picture.append(node("svg:line", {x1: X(from), y1: Y(Math.max(10 ** ly, from * DATA.dma_bytes_per_ns)), x2: X(peak / DATA.dma_bytes_per_ns), y2: Y(peak), stroke: "var(--dma)", "stroke-dasharray": "4 4"}),
    node("svg:text", {class: "soft", x: X(Math.sqrt(from * ridge)) + 14, y: Y(Math.sqrt(from * ridge) * DATA.dma_bytes_per_ns) + 14}, `DMA ${DATA.dma_bytes_per_ns.toFixed(0)} GB/s`));
  picture.append(node("svg:text", {x: W - R - 4, y: Y(peak) - 6, "text-anchor": "end"}, `TensorE ${(peak / 1000).toFixed(1)} TFLOP/s`), node("svg:text", {x: X(Math.sqrt(from * ridge)) - 8, y: Y(Math.sqrt(from * ridge) * rate) - 8, "text-anchor": "end"}, `HBM ${rate.toFixed(0)} GB/s`));
  picture.append(node("svg:text", {class: "soft", x: (L + W) / 2, y: H - 6, "text-anchor": "middle"}, "FLOPs a byte of HBM"), node("svg:text", {class: "soft", x: L - 6, y: T + 2, "text-anchor": "end"}, "FLOP/s"));
  points.slice().sort((a, b) => b.critical_ns - a.critical_ns).slice(0, 400).forEach((op) => {
    const r = 3 + 16 * Math.sqrt(op.critical_ns / TIME);
    picture.append(tips(node("svg:circle", {cx: X(op.flops / op.hbm_bytes), cy: Y(op.flops / op.critical_ns), r, fill: `var(--${kind(op.engine)})`, "fill-opacity": 0.65, stroke: "var(--card)", style: "cursor:pointer", onclick: () => choose(op.name)}), about(op)));
  });
  put("roofline-chart", picture, legend(ENGINES.filter((engine) => points.some((op) => op.engine === engine))), node("p", {class: "what"}, "Area: time on the critical path. Colour: the busiest engine."));
}

// Timeline on a canvas: wheel zooms, drag and arrow keys move, + - 0 zoom.
function timeline() {
  const rows = Object.entries(DATA.timeline), series = Object.entries(DATA.rates.series);
  const canvas = node("canvas", {tabindex: "0", role: "img", "aria-label": `Timeline of ${rows.map(([name]) => name).join(", ")} over ${time(TOTAL)}. Arrow keys move, plus and minus zoom, 0 shows all.`});
  const LEFT = 96, ROW = 22, GRAPH = 40, height = 22 + rows.length * ROW + 8 + series.length * (GRAPH + 6);
  let from = 0, to = TOTAL, held = null;
  put("timeline-chart", canvas, legend(ENGINES.slice(0, 6).filter((engine) => rows.some(([name]) => family(name) === engine))));
  function family(name) { return name.startsWith("dma") ? "dma" : kind(name); }
  const X = (ns, width) => LEFT + (ns - from) / (to - from) * (width - LEFT);
  function draw() {
    const width = canvas.clientWidth || 1200, ratio = devicePixelRatio || 1;
    canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = height + "px";
    const c = canvas.getContext("2d"); c.scale(ratio, ratio); c.font = "12px system-ui, sans-serif"; c.textBaseline = "middle";
    const ink = color("ink"), soft = color("soft"), line = color("line"), card = color("card");
    c.fillStyle = soft; c.textAlign = "center";
    const step = 10 ** Math.floor(Math.log10((to - from) / 6)), tick = [1, 2, 5, 10].map((k) => k * step).find((k) => (to - from) / k <= 8);
    for (let t = Math.ceil(from / tick) * tick; t <= to; t += tick) { c.strokeStyle = line; c.beginPath(); c.moveTo(X(t, width), 18); c.lineTo(X(t, width), height); c.stroke(); c.fillText(time(t), Math.min(width - 24, X(t, width)), 9); }
    rows.forEach(([name, flat], row) => {
      const y = 22 + row * ROW; c.textAlign = "left"; c.fillStyle = ink; c.fillText(name.replace("dma_", "q "), 4, y + ROW / 2 - 1); c.fillStyle = color(family(name));
      for (let i = 0; i < flat.length; i += 4) {
        const a = X(flat[i], width), b = X(flat[i] + flat[i + 1], width); if (b < LEFT || a > width) continue;
        const x = Math.max(LEFT, a), w = Math.max(0.7, b - x); c.globalAlpha = 0.28 + 0.72 * flat[i + 2] / 100; c.fillRect(x, y, w, ROW - 4);
        if (w > 54 && flat[i + 3] >= 0) { c.save(); c.globalAlpha = 1; c.beginPath(); c.rect(x, y, w - 3, ROW); c.clip(); c.fillStyle = flat[i + 2] > 45 ? card : ink; c.fillText(OPS[flat[i + 3]].name, x + 4, y + ROW / 2 - 1.5); c.restore(); }
      }
      c.globalAlpha = 1;
    });
    series.forEach(([name, values], index) => {
      const y = 28 + rows.length * ROW + index * (GRAPH + 6), most = name.includes("%") ? 100 : Math.max(1e-9, name.includes("HBM") ? DATA.hbm_bytes_per_ns : DATA.dma_bytes_per_ns, ...values);
      c.fillStyle = color(name.startsWith("TensorE") ? "tensor" : "dma"); c.beginPath(); c.moveTo(LEFT, y + GRAPH);
      values.forEach((value, i) => { const a = X(i * DATA.rates.column_ns, width), b = X((i + 1) * DATA.rates.column_ns, width); if (b >= LEFT && a <= width) { const h = GRAPH * Math.min(1, value / most); c.rect(Math.max(LEFT, a), y + GRAPH - h, Math.max(0.6, b - Math.max(LEFT, a)), h); } });
      c.fill(); c.strokeStyle = line; c.strokeRect(LEFT, y, width - LEFT, GRAPH);
      c.fillStyle = ink; c.fillText(name.split(" ").slice(0, 1)[0], 4, y + 12); c.fillStyle = soft; c.fillText(`0–${Math.round(most)} ${(name.match(/\((.*)\)/) || ["", ""])[1]}`, 4, y + 28);
    });
  }
  function view(a, b) { const span = Math.min(TOTAL, Math.max(TOTAL / 5000, b - a)); from = Math.min(Math.max(0, a), TOTAL - span); to = from + span; draw(); }
  function zoom(factor, at = (from + to) / 2) { view(at - (at - from) * factor, at + (to - at) * factor); }
  const ns = (event) => { const box = canvas.getBoundingClientRect(); return from + (event.clientX - box.left - LEFT) / (box.width - LEFT) * (to - from); };
  canvas.addEventListener("wheel", (event) => { if (event.ctrlKey || event.shiftKey || document.activeElement === canvas) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, ns(event)); } }, {passive: false});
  canvas.addEventListener("pointerdown", (event) => { held = [event.clientX, from, to]; canvas.setPointerCapture(event.pointerId); canvas.focus(); });
  canvas.addEventListener("pointerup", (event) => { if (held && Math.abs(event.clientX - held[0]) < 3) { const op = hit(event)?.op; if (op) choose(op.name); } held = null; });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, ns(event)));
  canvas.addEventListener("keydown", (event) => {
    const step = (to - from) / 5, act = {ArrowLeft: () => view(from - step, to - step), ArrowRight: () => view(from + step, to + step), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), "0": () => view(0, TOTAL)}[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  function hit(event) {
    const box = canvas.getBoundingClientRect(), row = Math.floor((event.clientY - box.top - 22) / ROW), t = ns(event); if (row < 0 || row >= rows.length) return null;
    const flat = rows[row][1]; for (let i = 0; i < flat.length; i += 4) if (flat[i] <= t && t <= flat[i] + flat[i + 1]) return {op: OPS[flat[i + 3]], row: rows[row][0], begin: flat[i], length: flat[i + 1], busy: flat[i + 2]};
    return null;
  }
  tips(canvas, (event) => {
    if (held) { const box = canvas.getBoundingClientRect(), by = (held[0] - event.clientX) / (box.width - LEFT) * (held[2] - held[1]); view(held[1] + by, held[2] + by); return ""; }
    const found = hit(event); return found ? `${found.row}: ${time(found.begin)} + ${time(found.length)}, busy ${found.busy} %\n${found.op ? about(found.op) : ""}` : "";
  });
  for (const [label, action] of [["Zoom in", () => zoom(0.5)], ["Zoom out", () => zoom(2)], ["All", () => view(0, TOTAL)]]) document.getElementById("timeline-tools").append(node("button", {type: "button", onclick: action}, label));
  new ResizeObserver(draw).observe(canvas); redraws.push(draw); draw();
}
const redraws = [];

// Memory over time
function memory() {
  for (const [name, facts] of Object.entries(DATA.memory)) {
    const W = 620, H = 120, L = 64, B = 18, scale = name === "HBM" ? Math.max(facts.peak_bytes * 1.08, 1) : facts.capacity;
    const per = name === "HBM" ? "" : " a partition";
    const picture = node("svg:svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${name} in use: at most ${bytes(facts.peak_bytes)} of ${bytes(facts.capacity)}${per}, at ${time(facts.peak_at)}`});
    for (const share of [0, 0.5, 1]) picture.append(node("svg:line", {class: "grid", x1: L, x2: W, y1: (H - B) * (1 - share) + 1, y2: (H - B) * (1 - share) + 1}), node("svg:text", {class: "soft", x: L - 6, y: (H - B) * (1 - share) + (share === 1 ? 11 : 4), "text-anchor": "end"}, bytes(scale * share)));
    const step = (W - L) / facts.columns.length, edge = facts.columns.map((used, i) => `${L + i * step},${(H - B) * (1 - used / scale) + 1} ${L + (i + 1) * step},${(H - B) * (1 - used / scale) + 1}`).join(" ");
    picture.append(node("svg:polygon", {points: `${L},${H - B} ${edge} ${W},${H - B}`, fill: "var(--accent)", "fill-opacity": 0.4, stroke: "var(--accent)"}));
    picture.append(node("svg:text", {class: "soft", x: L, y: H - 3}, "0"), node("svg:text", {class: "soft", x: W, y: H - 3, "text-anchor": "end"}, time(TOTAL)));
    const chart = node("div", {}, node("h3", {style: "font-size:14px;margin:6px 0 2px"}, `${name}: ${bytes(facts.peak_bytes)} of ${bytes(facts.capacity)}${per}`), picture);
    tips(picture, (event) => { const box = picture.getBoundingClientRect(), i = Math.floor(((event.clientX - box.left) / box.width * W - L) / step); return facts.columns[i] === undefined ? "" : `${time(i / facts.columns.length * TOTAL)}: ${bytes(facts.columns[i])}${per}`; });
    const id = "memory-" + name; put("memory-charts", node("div", {class: "two"}, chart, node("div", {id})));
    table(id, [
      {head: `Largest in ${name}`, text: true, key: (row) => row.name, full: (row) => `${row.name} ${row.source}`, show: (row) => node("span", {class: "mono"}, row.name)},
      {head: "Size", key: (row) => row.bytes, show: (row) => bytes(row.bytes)},
      {head: "From", key: (row) => row.begin, show: (row) => time(row.begin)}, {head: "To", key: (row) => row.end, show: (row) => time(row.end)},
    ], facts.values, {sort: 1, caption: `Largest values in ${name} when most is in use`});
    if (facts.others.count) put(id, node("p", {class: "what"}, `and ${count(facts.others.count)} more with ${bytes(facts.others.bytes)}`));
  }
}

// Horizontal bars: DMA runs by size, precision
function bars(id, rows, total, label) {
  const W = 620, H = rows.length * 24 + 6, L = 130, most = Math.max(1e-9, ...rows.map((row) => row.value));
  const picture = node("svg:svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label + ": " + rows.map((row) => `${row.name} ${row.text}`).join("; ")});
  rows.forEach((row, i) => picture.append(node("svg:text", {x: L - 8, y: i * 24 + 16, "text-anchor": "end"}, row.name),
    tips(node("svg:rect", {x: L, y: i * 24 + 4, width: Math.max(1, row.value / most * (W - L - 290)), height: 16, rx: 3, fill: `var(--${row.color})`}), row.text),
    node("svg:text", {class: "soft", x: L + row.value / most * (W - L - 290) + 8, y: i * 24 + 16}, row.text)));
  put(id, picture);
}
function dma() {
  const whole = DATA.dma_sizes.reduce((sum, row) => sum + row.busy_ns, 0) || 1;
  bars("dma-chart", DATA.dma_sizes.map((row) => ({name: row.from >= 1024 ? bytes(row.from) + " –" : `${row.from}–${row.to} B`, value: row.busy_ns, color: row.from < 512 ? "gpsimd" : "dma",
    text: `${percent(row.busy_ns / whole)} of DMA time, ${count(row.runs)} runs, ${bytes(row.bytes)}`})), whole, "DMA time by the size of contiguous runs");
}
function precision() {
  for (const [key, title, show] of [["products_ns", "TensorE products", time], ["compute_ns", "Vector, Scalar, GpSimd (widest operand)", time], ["hbm_bytes", "arrays in HBM, read and written", bytes]]) {
    const rows = Object.entries(DATA.precision[key]).sort((a, b) => b[1] - a[1]); if (!rows.length) continue;
    const whole = rows.reduce((sum, row) => sum + row[1], 0);
    put("precision-chart", node("h3", {style: "font-size:14px;margin:6px 0 2px"}, title));
    bars("precision-chart", rows.map(([dtype, amount]) => ({name: dtype, value: amount, color: {products_ns: "tensor", compute_ns: "vector", hbm_bytes: "dma"}[key], text: `${percent(amount / whole)}, ${show(amount)}`})), whole, title);
  }
  const cast = DATA.options.auto_cast; if (cast) put("precision-chart", node("p", {class: "what"}, `Compiled with --auto-cast ${cast}${DATA.options.auto_cast_type ? ", type " + DATA.options.auto_cast_type : ""}.`));
}
function path() {
  const facts = DATA.critical_path;
  const why = {semaphore: "waited for its operands", order: "engine was taken", dependency: "operand just written", port: "port was taken", "dma engines": "DMA engines were taken", "function table": "function table", descriptors: "descriptors"};
  put("path-chart", node("p", {class: "what"}, `${count(facts.count)} stretches in all; here the longest ${facts.stretches.length}, ${percent(facts.known_ns ? facts.shown_ns / facts.known_ns : 1)} of their time, in order.`));
  table("path-chart", [
    {head: "Begin", key: (row) => row.begin, show: (row) => time(row.begin)},
    {head: "Time", key: (row) => row.end - row.begin, show: (row) => time(row.end - row.begin)},
    {head: "Op", text: true, key: (row) => row.name, show: (row) => node("button", {type: "button", class: "mono", onclick: () => choose(row.name)}, row.name)},
    {head: "On", text: true, key: (row) => row.stream, show: (row) => row.stream},
    {head: "Spent on", key: (row) => row.parts.busy, show: (row) => bar({[kind(row.stream)]: row.parts.busy, latency: row.parts.latency, wait: row.parts.wait}, row.end - row.begin)},
    {head: "Instructions", key: (row) => row.instructions, show: (row) => count(row.instructions)},
    {head: "Began when", text: true, key: (row) => row.why, show: (row) => why[row.why] || row.why},
  ], facts.stretches, {sort: 1, words: (row) => row.name + " " + row.stream, caption: "Critical path", hint: "op or engine"});
}
function difference() {
  const diff = DATA.diff; if (!diff) return;
  document.getElementById("diff").hidden = false; document.getElementById("diff-link").hidden = false;
  const sign = (ns) => node("span", {class: ns < 0 ? "better" : ns > 0 ? "worse" : null}, (ns > 0 ? "+" : ns < 0 ? "−" : "") + time(Math.abs(ns)));
  put("diff-chart", node("p", {class: "verdict"}, diff.sentence));
  table("diff-chart", [
    {head: "Source line or op", text: true, key: (row) => row.name, show: (row) => node("span", {class: "mono"}, short(row.name))},
    {head: "Before", key: (row) => row.before_ns, show: (row) => time(row.before_ns)}, {head: "After", key: (row) => row.after_ns, show: (row) => time(row.after_ns)},
    {head: "Change", key: (row) => Math.abs(row.change_ns), show: (row) => sign(row.change_ns)},
    {head: "Bound by, before", text: true, key: (row) => row.before_bound, show: (row) => row.before_bound}, {head: "Bound by, after", text: true, key: (row) => row.after_bound, show: (row) => row.after_bound},
  ], diff.rows, {sort: 3, words: (row) => row.name, caption: "Difference", hint: "file, line or op"});
}
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark"; redraws.forEach((draw) => draw());
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((draw) => draw()));
addEventListener("keydown", (event) => { if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); document.getElementById("operator-table-filter").focus(); } });
verdict(); difference(); operatorTable(); treemap(); timeline(); roofline(); memory(); dma(); precision(); path();
document.body.dataset.ready = "true";
