"use strict";
// Each figure with data-view becomes a canvas: wheel or buttons zoom, dragging moves, pointing shows what is there.
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name);

function view(figure) {
  const data = JSON.parse(figure.dataset.view), img = figure.querySelector("img");
  const canvas = document.createElement("canvas"), tools = figure.querySelector(".tools");
  const told = document.createElement("span"), pen = canvas.getContext("2d");
  const hint = data.time ? "wheel: zoom time; shift + wheel: zoom ranks; drag: move" : "point at a cell to read it";
  let window_ = {x: 0, y: 0, w: 1, h: 1}, drag = null;
  const left = data.time ? 72 : 58, bottom = 34, top = 6, right = 8;

  const raw = document.createElement("canvas");
  raw.width = img.naturalWidth; raw.height = img.naturalHeight;
  const source = raw.getContext("2d", {willReadFrequently: true});
  source.drawImage(img, 0, 0);

  const size = () => {
    const width = figure.clientWidth, n = data.rows;
    const height = data.time ? Math.max(110, Math.min(n <= 256 ? 24 * n : 560, 560)) : Math.min(width - left - right, 440, Math.max(130, 52 * n));
    return [width, height];
  };

  // The next of 1, 2, 5, 10, 20, ... that is no less.
  const round = value => {
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map(k => k * power).find(k => k >= value * .999);
  };

  function draw() {
    const [width, height] = size(), scale = devicePixelRatio || 1;
    const wide = data.time ? width : left + height + right;
    canvas.style.width = wide + "px"; canvas.style.height = height + top + bottom + "px";
    canvas.width = wide * scale; canvas.height = (height + top + bottom) * scale;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const plotWidth = data.time ? width - left - right : height;
    const {x, y, w, h} = window_;
    pen.imageSmoothingEnabled = data.time && raw.height * h > height * 1.5;
    pen.imageSmoothingQuality = "high";
    pen.drawImage(raw, x * raw.width, y * raw.height, w * raw.width, h * raw.height, left, top, plotWidth, height);
    pen.strokeStyle = ink("--line"); pen.strokeRect(left - .5, top - .5, plotWidth + 1, height + 1);
    pen.fillStyle = data.time ? ink("--soft") : "#444";
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    rankLabels(height); timeLabels(plotWidth, height);
    if (data.values && data.rows <= 12) cells(height);
    return [plotWidth, height];
  }

  function cells(height) {
    const n = data.rows, most = Math.max(...data.values.flat());
    pen.textAlign = "center";
    data.values.forEach((line, row) => line.forEach((value, column) => {
      if (!value) return;
      pen.fillStyle = value > most * .3 ? "#fff" : "#000";
      pen.fillText(value.toLocaleString(), left + (column + .5) / n * height, top + (row + .5) / n * height, height / n - 4);
    }));
  }

  function rankLabels(height) {
    const {y, h} = window_, n = data.rows, shown = n * h;
    const every = Math.max(1, round(shown * data.each * 16 / height));
    pen.textAlign = "right";
    if (data.hosts.length > 1 && shown * 15 > height) return hostLabels(height);
    for (let k = Math.ceil(y * n - .5); k < (y + h) * n; k += 1) {
      const at = top + ((k + .5) / n - y) / h * height;
      const rank = data.time ? data.names[k] : k * data.each;
      if (rank % every < data.each && at > top && at < top + height) pen.fillText(data.time ? "rank " + rank : rank, left - 6, at);
    }
    if (data.time) lines(height);
  }

  function lines(height) {
    const {y, h} = window_, n = data.rows;
    pen.strokeStyle = ink("--ink"); pen.globalAlpha = .45;
    for (const [, first] of data.hosts.slice(1)) {
      const at = top + (first / n - y) / h * height;
      if (at > top && at < top + height) { pen.beginPath(); pen.moveTo(left - 8, at); pen.lineTo(canvas.clientWidth - right, at); pen.stroke(); }
    }
    pen.globalAlpha = 1;
  }

  function hostLabels(height) {
    const {y, h} = window_, n = data.rows;
    let last = -99;
    data.hosts.forEach(([name, first], k) => {
      const end = k + 1 < data.hosts.length ? data.hosts[k + 1][1] : n;
      const at = top + ((first + end) / 2 / n - y) / h * height;
      if (at - last > 14 && at > top && at < top + height) { pen.fillText(name.slice(0, 9), left - 6, at, left - 8); last = at; }
    });
    if (data.hosts.length < 40) lines(height);
  }

  function timeLabels(width, height) {
    const {x, w} = window_;
    pen.textAlign = "center";
    if (!data.time) {
      const n = data.rows, every = Math.max(1, round(n * data.each * w * 36 / width));
      for (let k = 0; k < n; k += 1) if (k * data.each % every < data.each) pen.fillText(k * data.each, left + (k + .5) / n * width, top + height + 12);
      pen.fillText("to rank", left + width / 2, top + height + 27);
      pen.save(); pen.translate(8, top + height / 2); pen.rotate(-Math.PI / 2); pen.fillText("from rank", 0, 0); pen.restore();
      return;
    }
    const span = data.time * w, unit = span < 2e-3 ? [1e6, "us"] : span < 2 ? [1e3, "ms"] : span < 600 ? [1, "s"] : [1 / 60, "min"];
    const step = round(span * unit[0] / Math.max(2, width / 110));
    for (let k = Math.ceil(data.time * x * unit[0] / step); k * step <= data.time * (x + w) * unit[0] * 1.0001; k += 1) {
      const at = left + (k * step / unit[0] / data.time - x) / w * width;
      pen.fillRect(at, top + height, 1, 4);
      const digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
      pen.fillText((k * step).toFixed(digits) + " " + unit[1], Math.min(at, left + width - 18), top + height + 13);
    }
  }

  function tell(event) {
    const box = canvas.getBoundingClientRect(), [width, height] = size();
    const plotWidth = data.time ? width - left - right : height;
    const u = (event.clientX - box.left - left) / plotWidth, v = (event.clientY - box.top - top) / height;
    if (u < 0 || v < 0 || u >= 1 || v >= 1) { told.textContent = hint; return; }
    const px = (window_.x + u * window_.w) * raw.width | 0, py = (window_.y + v * window_.h) * raw.height | 0;
    const row = (window_.y + v * window_.h) * data.rows | 0, column = (window_.x + u * window_.w) * data.rows | 0;
    const rgba = source.getImageData(px, py, 1, 1).data;
    if (!data.time) {
      const amount = data.values ? ": " + data.values[row][column].toLocaleString() + " " + data.unit : "";
      const name = k => data.each > 1 ? k * data.each + " to " + ((k + 1) * data.each - 1) : k;
      told.textContent = "from " + name(row) + " to " + name(column) + amount;
      return;
    }
    const hex = "#" + [...rgba.slice(0, 3)].map(part => part.toString(16).padStart(2, "0")).join("");
    const phase = rgba[3] ? data.phases[hex] || "" : "";
    const at = (window_.x + u * window_.w) * data.time;
    told.textContent = "rank " + data.names[Math.min(row, data.names.length - 1)] + ", " + at.toPrecision(4) + " s" + (phase ? ": " + phase : "");
  }

  function zoom(factor, u, v, ranks) {
    const go = (at, span, place) => {
      const next = Math.min(1, Math.max(span * factor, 2e-3)), begin = at + place * (span - next);
      return [Math.min(Math.max(begin, 0), 1 - next), next];
    };
    if (ranks) [window_.y, window_.h] = go(window_.y, window_.h, v);
    else [window_.x, window_.w] = go(window_.x, window_.w, u);
    draw();
  }

  img.replaceWith(canvas);
  tools.append(told);
  told.textContent = hint;
  if (data.time) {
    for (const [text, act] of [["+", () => zoom(.5, .5, .5)], ["\u2212", () => zoom(2, .5, .5)], ["all", () => { window_ = {x: 0, y: 0, w: 1, h: 1}; draw(); }]]) {
      const button = document.createElement("button");
      button.textContent = text; button.onclick = act; tools.insertBefore(button, told);
    }
    canvas.onwheel = event => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : .8, (event.clientX - box.left - left) / (box.width - left - right), (event.clientY - box.top - top) / (box.height - bottom), event.shiftKey);
    };
    canvas.onpointerdown = event => { drag = {at: [event.clientX, event.clientY], ...window_}; canvas.setPointerCapture(event.pointerId); };
    canvas.onpointerup = () => { drag = null; };
  }
  canvas.onpointermove = event => {
    if (drag && data.time) {
      const [width, height] = size();
      window_.x = Math.min(Math.max(drag.x - (event.clientX - drag.at[0]) / width * drag.w, 0), 1 - drag.w);
      window_.y = Math.min(Math.max(drag.y - (event.clientY - drag.at[1]) / height * drag.h, 0), 1 - drag.h);
      draw();
    }
    tell(event);
  };
  draw();
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme:dark)").addEventListener("change", draw);
}

// On a phone, lines of a table become blocks, with the name of its column above each cell.
function name(table) {
  const names = [...table.querySelectorAll("th")].map(head => head.textContent);
  table.querySelectorAll("tbody tr").forEach(line => [...line.cells].forEach((cell, k) => { cell.dataset.name = names[k]; }));
}

addEventListener("load", () => {
  document.querySelectorAll("[data-view]").forEach(view);
  document.querySelectorAll("table").forEach(name);
});
