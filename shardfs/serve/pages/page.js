// Asks for pictures, plots and values again as fields change, and puts ticks where the server says. The server computes
// everything; without this script, the form does the same with a button.
"use strict";

const section = document.querySelector("#picture[data-source]");
if (section !== null) start(section);
const contents = document.querySelector("#contents");
if (contents !== null) fillIn(contents);
for (const button of document.querySelectorAll("button.copy")) copying(button);
for (const link of document.querySelectorAll('a[href="#viewers"]')) {
  link.addEventListener("click", () => { document.querySelector("#viewers details").open = true; });
}
for (const image of document.querySelectorAll("img.thumbnail")) {
  const remove = () => image.remove();
  if (image.complete && image.naturalWidth === 0) remove();
  image.addEventListener("error", remove);
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className !== undefined) made.className = className;
  return made;
}

function drawn(name, attributes, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...inside);
  return made;
}

function start(section) {
  const form = section.querySelector("form");
  const view = section.querySelector(".view");
  const image = view.querySelector("img");
  const mark = section.querySelector(".mark");
  const status = section.querySelector("#status");
  const readout = section.querySelector("#readout");
  const legend = section.querySelector(".legend");
  const plots = section.querySelector("#plots");
  const scale = section.querySelector(".scale");
  const hint = readout.textContent;
  const isLine = section.dataset.kind === "line";
  const [height, width] = section.dataset.shape.split(",").map(Number);
  const whole = { top: 0, bottom: height, left: 0, right: width };
  let pending = new AbortController(), asking = null, wanted = null, marking = new AbortController();
  let isFlipped = false, edges = [0, 1], marked = "", ofMark = hint, pixels = 1024;

  // What the form says, without what is usual.
  function fields() {
    const found = new URLSearchParams(), boxes = {};
    for (const group of form.querySelectorAll("[data-boxes]")) {
      const name = group.dataset.boxes;
      const on = [...group.querySelectorAll("input:checked")].map((box) => box.value);
      boxes[name] = on.join(",") || (name === "channels" ? "none" : "");
      if (boxes[name] !== group.dataset.default) found.set(name, boxes[name]);
    }
    for (const input of form.elements) {
      if (!input.name || input.name in boxes || input.type === "checkbox") continue;
      if (input.value !== "" && input.value !== input.dataset.default) found.set(input.name, input.value);
    }
    const channels = form.querySelector("input[data-axis]");
    if (channels !== null && boxes.channels !== "none") found.delete(channels.dataset.axis);
    return found;
  }

  function part() {
    const found = {};
    for (const name in whole) found[name] = form[name].value === "" ? whole[name] : Number(form[name].value);
    return found;
  }

  function setPart(part) {
    for (const name in whole) form[name].value = part[name] === whole[name] ? "" : part[name];
    show();
  }

  // Keeps the same number of elements, and moves them to where there are some.
  function placed(top, left, rows, columns) {
    rows = Math.min(height, Math.max(1, Math.round(rows)));
    columns = Math.min(width, Math.max(1, Math.round(columns)));
    top = Math.min(height - rows, Math.max(0, Math.round(top)));
    left = Math.min(width - columns, Math.max(0, Math.round(left)));
    setPart({ top, bottom: top + rows, left, right: left + columns });
  }

  function zoom(factor, place) {
    const { top, bottom, left, right } = part();
    const rows = bottom - top, columns = right - left;
    const at = place ?? markedPlace() ?? { row: top + rows / 2, column: left + columns / 2 };
    placed(at.row - (rows * factor) / 2, at.column - (columns * factor) / 2, rows * factor, columns * factor);
  }

  function move(down, across) {
    const { top, bottom, left, right } = part();
    const rows = bottom - top, columns = right - left;
    placed(top + ((isFlipped ? -down : down) * rows) / 4, left + (across * columns) / 4, rows, columns);
  }

  // The element at a place of the picture, both from 0 to 1; and the other way round.
  function elementAt(x, y) {
    const { top, bottom, left, right } = part();
    const down = Math.min(bottom - top - 1, Math.max(0, Math.floor(y * (bottom - top))));
    const across = Math.min(right - left - 1, Math.max(0, Math.floor(x * (right - left))));
    return { row: isFlipped ? bottom - 1 - down : top + down, column: left + across };
  }

  function placeOf({ row, column }) {
    const { top, bottom, left, right } = part();
    const y = ((isFlipped ? bottom - 1 - row : row - top) + 0.5) / (bottom - top);
    return { x: (column - left + 0.5) / (right - left), y };
  }

  function placeUnder(event) {
    const box = (isLine ? view.querySelector("svg") ?? view : image).getBoundingClientRect();
    let x = (event.clientX - box.left) / box.width;
    if (isLine) x = (x - edges[0]) / (edges[1] - edges[0]);
    const y = (event.clientY - box.top) / box.height;
    return x < 0 || x > 1 || y < 0 || y > 1 ? null : elementAt(x, isLine ? 0 : y);
  }

  function markedPlace() {
    if (form.column.value === "") return null;
    return { row: form.row.value === "" ? 0 : Number(form.row.value), column: Number(form.column.value) };
  }

  function setMark(place) {
    form.row.value = place === null || isLine ? "" : place.row;
    form.column.value = place === null ? "" : place.column;
    keepAddress();
    showMark();
  }

  function moveMark(down, across) {
    const { top, bottom, left, right } = part();
    const now = markedPlace();
    if (now === null) return setMark({ row: (top + bottom) >> 1, column: (left + right) >> 1 });
    const step = (length) => Math.max(1, Math.round(length / pixels));
    const row = now.row + (isFlipped ? -down : down) * step(bottom - top), column = now.column + across * step(right - left);
    setMark({ row: Math.min(bottom - 1, Math.max(top, row)), column: Math.min(right - 1, Math.max(left, column)) });
  }

  function keepAddress() {
    const query = fields().toString();
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
    const file = section.querySelector("#file");
    file.href = query ? `${section.dataset.source}?${query}` : section.dataset.source;
  }

  async function show() {
    pending.abort();
    const mine = pending = new AbortController();
    keepAddress();
    const asked = fields();
    pixels = Math.min(1024, Math.max(256, Math.ceil((view.clientWidth * devicePixelRatio) / 256) * 256));
    asked.set("size", isLine ? Math.max(300, view.clientWidth) : pixels);
    view.classList.add("is-waiting");
    try {
      const reply = await fetch(`${section.dataset.source}?${asked}`, { signal: mine.signal });
      if (!reply.ok) throw new Error(await reply.text());
      const about = JSON.parse(reply.headers.get("Shardfs-Picture"));
      if (isLine) showPlot(view, await reply.text(), mine.signal);
      else showPicture(await reply.blob(), mine.signal);
      if (mine.signal.aborted) return;
      describe(about);
      report([about.text, ...about.notes].join("; "), about.damage);
    } catch (error) {
      if (mine.signal.aborted) return;
      image.hidden = true;
      report("", error.message);
    }
    view.classList.remove("is-waiting");
    showMark();
  }

  function showPicture(data, signal) {
    if (signal.aborted) return;
    URL.revokeObjectURL(image.src);
    image.src = URL.createObjectURL(data);
    image.hidden = false;
  }

  function showPlot(where, text, signal) {
    if (signal.aborted) return;
    const plot = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    if (plot.localName !== "svg") throw new Error("there is no plot");
    where.querySelector("svg")?.remove();
    where.prepend(document.importNode(plot, true));
  }

  // Puts what a picture says around it.
  function describe(about) {
    isFlipped = about.flipped === true;
    edges = about.edges ?? edges;
    if (about.ratio !== undefined) section.style.setProperty("--ratio", Math.min(20, Math.max(1 / 20, about.ratio)));
    setTicks(section.querySelector(".ticks.down"), about.rows ?? [], "top");
    setTicks(section.querySelector(".ticks.across"), about.columns ?? [], "left");
    scale.hidden = about.scale === undefined;
    if (about.scale !== undefined) {
      scale.style.width = `${100 * about.scale[0]}%`;
      scale.textContent = about.scale[1];
    }
    for (const [axis, , label, index] of about.where ?? []) {
      const output = form.querySelector(`output[for="i${axis}"]`);
      const input = form.querySelector(`#i${axis}`);
      if (output === null || Number(input.value) !== index) continue;
      output.value = label === String(index) ? label : `${label} (${index})`;
      input.setAttribute("aria-valuetext", output.value);
    }
    const channels = form.querySelector("input[data-axis]");
    if (channels !== null) {
      const slider = form.querySelector(`#${channels.dataset.axis}`);
      slider.closest(".field").hidden = about.channels !== undefined;
      for (const name of ["colors", "min", "max"])
        if (form[name] !== undefined) form[name].closest(".field").hidden = about.channels !== undefined;
    }
    const isLabels = form.colors !== undefined && form.colors.value === "labels";
    for (const part of [form.querySelector(".range"), form.scale?.closest(".field")]) part?.toggleAttribute("hidden", isLabels);
    if (form.min !== undefined && about.bar !== undefined) {
      form.min.placeholder = about.black;
      form.max.placeholder = about.white;
    }
    showLegend(about);
  }

  function setTicks(where, ticks, side) {
    where.replaceChildren(...ticks.map(([place, label]) => {
      const tick = element("span", label);
      tick.style[side] = `${100 * place}%`;
      if (side === "left") tick.style.translate = place < 0.08 ? "-15%" : place > 0.92 ? "-85%" : "-50%";
      return tick;
    }));
  }

  function showLegend(about) {
    legend.replaceChildren();
    legend.hidden = about.bar === undefined && about.channels === undefined;
    if (about.bar !== undefined) {
      const { colors, ticks, unit, title, histogram } = about.bar;
      if (title || unit) legend.append(element("p", [title, unit && `[${unit}]`].filter(Boolean).join(" "), "title"));
      const bars = histogram.map((count, at) => drawn("rect", { x: at, y: 1000 - count, width: 1, height: count }));
      const name = `How often numbers are shown, from ${about.black} to ${about.white}`;
      legend.append(drawn("svg", {
        class: "histogram", viewBox: `0 0 ${histogram.length || 1} 1000`, preserveAspectRatio: "none", role: "img", "aria-label": name,
      }, ...bars));
      const bar = element("img", undefined, "bar");
      bar.src = `${section.dataset.bars}${colors}.png`;
      bar.alt = `Colours from ${about.black} to ${about.white} ${unit}`.trim();
      legend.append(bar);
      const marks = element("div", undefined, "ticks across");
      setTicks(marks, ticks, "left");
      legend.append(marks);
    }
    for (const [, name, color, low, high] of about.channels ?? []) {
      const line = element("p", undefined, "channel");
      line.append(drawn("svg", { class: "swatch", viewBox: "0 0 1 1", "aria-hidden": "true" }, drawn("path", { d: "M0 0h1v1H0z", fill: color })));
      line.append(low === undefined ? `${name}: no numbers` : `${name}: ${low} to ${high}`);
      legend.append(line);
    }
  }

  function report(text, problem) {
    const lines = [element("span", text), element("span", problem, "problem")];
    status.replaceChildren(...lines.filter((line) => line.textContent !== ""));
  }

  function textOf(about) {
    const where = about.where.map(([, name, label, index]) => `${name} ${label === String(index) ? label : `${label} (${index})`}`);
    const values = about.values.map(([name, value]) => (name ? `${name}: ${value}` : value));
    values.push(...about.labels.map(([name, value]) => `${name}: ${value}`));
    return `${values.join(", ")}  at  ${where.join(", ")}${about.level ? `  (in ${about.level})` : ""}`;
  }

  // The value under the pointer, of what is shown: one request at a time, and then for where the pointer is by then.
  async function hover(place) {
    wanted = place;
    if (asking !== null) return;
    while (wanted !== null) {
      const asked = fields();
      asked.set("row", wanted.row);
      asked.set("column", wanted.column);
      if (!isLine) asked.set("size", pixels);
      wanted = null;
      asking = fetch(`${section.dataset.values}?${asked}`);
      try {
        const reply = await asking;
        if (reply.ok && !view.matches(".is-left")) readout.textContent = textOf(await reply.json());
      } catch { /* the next one may come */ }
    }
    asking = null;
  }

  // The marked element: its value in the finest level, and the values along other axes.
  async function showMark() {
    const place = markedPlace();
    const { top, bottom, left, right } = part();
    const isInside = place !== null && !isLine && place.row >= top && place.row < bottom && place.column >= left && place.column < right;
    mark.hidden = !isInside || image.hidden;
    if (place === null) {
      marked = "";
      plots.replaceChildren();
      readout.textContent = ofMark = hint;
      return;
    }
    if (isInside) {
      const { x, y } = placeOf(place);
      mark.style.left = `${100 * x}%`;
      mark.style.top = `${100 * y}%`;
    }
    const asked = fields();
    for (const name of [...Object.keys(whole), "low", "high", "min", "max", "mark", "colors"]) asked.delete(name);
    asked.set("column", place.column);
    if (asked.toString() === marked) return;
    marked = asked.toString();
    marking.abort();
    const mine = marking = new AbortController();
    try {
      const reply = await fetch(`${section.dataset.values}?${asked}`, { signal: mine.signal });
      if (!reply.ok) throw new Error(await reply.text());
      const about = await reply.json();
      readout.textContent = ofMark = textOf(about);
      if (isLine) return;
      const before = new Map([...plots.children].map((figure) => [figure.dataset.axis, figure]));
      plots.replaceChildren(...about.plots.map((plot) => before.get(String(plot.axis)) ?? newPlot(plot)));
      for (const plot of about.plots) {
        const figure = plots.querySelector(`[data-axis="${plot.axis}"]`);
        if ((plot.few && !plot.plane) || figure.querySelector("svg") !== null) await fillPlot(figure, mine.signal);
      }
    } catch (error) {
      if (!mine.signal.aborted) readout.textContent = ofMark = error.message;
    }
  }

  function newPlot({ axis, name, chunks }) {
    const figure = element("figure");
    figure.dataset.axis = axis;
    const caption = element("figcaption");
    const button = element("button", `Draw the values along ${name} (${chunks} ${chunks === 1 ? "chunk" : "chunks"})`);
    button.type = "button";
    button.addEventListener("click", () => fillPlot(figure, marking.signal));
    caption.append(button);
    figure.append(caption);
    return figure;
  }

  async function fillPlot(figure, signal) {
    const asked = fields();
    asked.set("axis", figure.dataset.axis);
    asked.set("size", Math.max(300, plots.clientWidth));
    const reply = await fetch(`${section.dataset.plot}?${asked}`, { signal });
    const caption = figure.querySelector("figcaption");
    if (!reply.ok) {
      caption.textContent = await reply.text();
      return;
    }
    showPlot(figure, await reply.text(), signal);
    const about = JSON.parse(reply.headers.get("Shardfs-Picture"));
    caption.replaceChildren(about.text, element("span", about.damage, "problem"));
  }

  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), all: () => setPart(whole),
    left: () => move(0, -1), right: () => move(0, 1), up: () => move(-1, 0), down: () => move(1, 0),
  };
  const keys = {
    "+": "in", "=": "in", "-": "out", "0": "all",
    ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
  };
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  form.addEventListener("input", (event) => {
    const slider = event.target.dataset.of === undefined ? event.target : form[event.target.dataset.of];
    if (slider !== event.target && event.target.value !== "" && event.target.checkValidity()) slider.value = event.target.value;
    const output = form.querySelector(`output[for="${slider.id}"]`);
    if (output !== null) output.value = slider.value;
    const number = form.querySelector(`[data-of="${slider.id}"]`);
    if (number !== null && number !== event.target) number.value = slider.value;
    if (event.target.checkValidity()) show();
  });
  form.addEventListener("change", (event) => {
    if (event.target.name !== "rows" && event.target.name !== "columns") return;
    const other = event.target.name === "rows" ? form.columns : form.rows;
    if (other.value === event.target.value) other.value = form.dataset[event.target.name];
    for (const name of [...Object.keys(whole), "row", "column"]) form[name].value = "";  // other axes have other lengths
    location.search = fields();
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); show(); });
  form.querySelector("#reset").addEventListener("click", (event) => {
    event.preventDefault();
    location.assign(location.pathname);
  });
  section.querySelector(".buttons").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button !== null) actions[button.dataset.do]();
  });
  view.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.shiftKey && event.key in steps) moveMark(...steps[event.key]);
    else if (event.key === "m" || event.key === "Enter") moveMark(0, 0);
    else if (event.key === "Escape" && markedPlace() !== null) setMark(null);
    else if (event.key in keys && actions[keys[event.key]] !== undefined) actions[keys[event.key]]();
    else return;
    event.preventDefault();
  });
  view.addEventListener("pointermove", (event) => {
    const place = event.pointerType === "touch" ? null : placeUnder(event);
    view.classList.remove("is-left");
    if (place !== null) hover(place);
  });
  view.addEventListener("pointerleave", () => {
    view.classList.add("is-left");
    wanted = null;
    readout.textContent = ofMark;
  });
  view.addEventListener("click", (event) => {
    const place = placeUnder(event);
    if (place !== null && event.detail < 2) setMark(place);
  });
  view.addEventListener("dblclick", (event) => {
    const place = placeUnder(event);
    if (place !== null) zoom(0.5, { row: place.row + 0.5, column: place.column + 0.5 });
  });

  if (form.rows !== undefined) {
    form.dataset.rows = form.rows.value;
    form.dataset.columns = form.columns.value;
  }
  section.querySelector(".buttons").hidden = height * width === 1;
  for (const hidden of form.querySelectorAll("#reset, .index")) hidden.hidden = false;
  show();
}

// What is stored of the arrays in a group, and the range of coordinates: asked for when the page is there.
function fillIn(contents) {
  const said = contents.querySelector("#counted");
  const button = contents.querySelector("#count");

  async function ask(query) {
    const reply = await fetch(contents.dataset.source + query);
    if (!reply.ok) {
      said.textContent = await reply.text();
      return;
    }
    const { children, note } = await reply.json();
    for (const row of contents.querySelectorAll("tr[data-child]")) {
      const facts = children[row.dataset.child] ?? {};
      for (const cell of row.querySelectorAll("[data-fact]")) cell.textContent = facts[cell.dataset.fact] ?? cell.textContent;
    }
    said.textContent = note;
  }

  if (button !== null) {
    button.hidden = false;
    button.addEventListener("click", () => { button.disabled = true; ask("?sizes=1"); });
  }
  ask("");
}

function copying(button) {
  const code = button.parentElement.querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {  // only pages of this machine and of https may
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
