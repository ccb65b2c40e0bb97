// The picture of a plane: asks for another one as fields change, and for a part of it. Without this script, the form
// does the same with a button.
"use strict";

const section = document.querySelector("#picture[data-source]");
if (section !== null) start(section);

function start(section) {
  const form = section.querySelector("form");
  const view = section.querySelector(".view");
  const image = view.querySelector("img");
  const status = section.querySelector("#status");
  const [height, width] = section.dataset.shape.split(",").map(Number);
  const whole = { top: 0, bottom: height, left: 0, right: width };
  let pending = new AbortController();

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

  function zoom(factor, x = 0.5, y = 0.5) {
    const { top, bottom, left, right } = part();
    const rows = (bottom - top) * factor, columns = (right - left) * factor;
    placed(top + (bottom - top) * y - rows / 2, left + (right - left) * x - columns / 2, rows, columns);
  }

  function move(down, across) {
    const { top, bottom, left, right } = part();
    const rows = bottom - top, columns = right - left;
    placed(top + (down * rows) / 4, left + (across * columns) / 4, rows, columns);
  }

  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), all: () => setPart(whole),
    left: () => move(0, -1), right: () => move(0, 1), up: () => move(-1, 0), down: () => move(1, 0),
  };
  const keys = {
    "+": "in", "=": "in", "-": "out", "0": "all",
    ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
  };

  async function show() {
    pending.abort();
    const mine = pending = new AbortController();
    const fields = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "") fields.set(name, value);
    history.replaceState(null, "", `?${fields}`);
    fields.set("size", Math.min(1024, Math.max(256, Math.ceil((view.clientWidth * devicePixelRatio) / 256) * 256)));
    view.classList.add("is-waiting");
    try {
      const reply = await fetch(`${section.dataset.source}?${fields}`, { signal: mine.signal });
      if (!reply.ok) throw new Error(await reply.text());
      const about = JSON.parse(reply.headers.get("Shardfs-Picture"));
      const data = await reply.blob();
      if (mine.signal.aborted) return;
      URL.revokeObjectURL(image.src);
      image.src = URL.createObjectURL(data);
      image.hidden = about.value !== undefined;
      const { top, bottom, left, right } = part();
      image.style.setProperty("--ratio", Math.min(16, Math.max(1 / 16, (right - left) / (bottom - top))));
      let text = about.text;
      if (about.value !== undefined) text += `; value ${about.value}`;
      else if (about.black !== null) text += `; black is ${about.black}, white ${about.white}`;
      say(text, false);
    } catch (error) {
      if (mine.signal.aborted) return;
      image.hidden = true;
      say(error.message, true);
    }
    view.classList.remove("is-waiting");
  }

  function say(text, isProblem) {
    status.textContent = text;
    status.classList.toggle("problem", isProblem);
  }

  form.addEventListener("input", (event) => {
    const output = form.querySelector(`output[for="${event.target.id}"]`);
    if (output !== null) output.value = event.target.value;
    if (event.target.checkValidity()) show();
  });
  form.addEventListener("change", (event) => {
    if (event.target.name !== "rows" && event.target.name !== "columns") return;
    const other = event.target.name === "rows" ? form.columns : form.rows;
    if (other.value === event.target.value) other.value = form.dataset[event.target.name];
    for (const name in whole) form[name].value = "";  // other axes have other lengths, and other sliders
    form.submit();
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); show(); });
  section.querySelector(".buttons").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button !== null) actions[button.dataset.do]();
  });
  view.addEventListener("keydown", (event) => {
    const action = event.ctrlKey || event.altKey || event.metaKey ? undefined : keys[event.key];
    if (action === undefined) return;
    event.preventDefault();
    actions[action]();
  });
  image.addEventListener("click", (event) => {
    const box = image.getBoundingClientRect();
    zoom(0.5, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  });

  if (form.rows !== undefined) {
    form.dataset.rows = form.rows.value;
    form.dataset.columns = form.columns.value;
  }
  section.querySelector(".buttons").hidden = height * width === 1;
  show();
}
