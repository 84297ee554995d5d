"use strict";
// What a point stands for is shown beside the pointer, and with the arrow keys for those who have none.
const tip = document.getElementById("tip");

function show(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(x + 12, 4), innerWidth - box.width - 4);
  const top = y - box.height - 12 < 4 ? y + 16 : y - box.height - 12;
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
}

function hide() {
  tip.hidden = true;
}

for (const area of document.querySelectorAll(".area")) {
  const marker = area.querySelector(".marker");
  let points = null;
  let current = -1;
  const read = () => points ??= JSON.parse(area.querySelector("script").textContent);

  const mark = (index) => {
    const [x, y, text] = read()[index];
    const box = area.getBoundingClientRect();
    current = index;
    marker.hidden = false;
    marker.style.left = `${x / 10}%`;
    marker.style.top = `${y / 10}%`;
    show(text, box.left + x / 1000 * box.width, box.top + y / 1000 * box.height);
  };
  const leave = () => {
    marker.hidden = true;
    hide();
  };
  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    let nearest = -1;
    let distance = Infinity;
    read().forEach(([x, y], index) => {
      const across = x / 1000 * box.width - (event.clientX - box.left);
      const down = y / 1000 * box.height - (event.clientY - box.top);
      const found = across * across + down * down / 9;
      if (found < distance) [nearest, distance] = [index, found];
    });
    if (nearest >= 0) mark(nearest);
  });
  area.addEventListener("pointerleave", leave);
  area.addEventListener("blur", leave);
  area.addEventListener("keydown", (event) => {
    const last = read().length - 1;
    const steps = {ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: last};
    if (event.key === "Escape") leave();
    if (!(event.key in steps) || last < 0) return;
    event.preventDefault();
    mark(Math.min(Math.max(steps[event.key], 0), last));
  });
}

for (const element of document.querySelectorAll("[data-tip]")) {
  element.addEventListener("pointermove", (event) => show(element.dataset.tip, event.clientX, event.clientY));
  element.addEventListener("pointerleave", hide);
}

// A choice shows the view of the options that are checked.
for (const choice of document.querySelectorAll(".choice")) {
  const own = (found) => found.closest(".choice") === choice;
  choice.addEventListener("change", (event) => {
    if (!own(event.target)) return;
    const chosen = [...choice.querySelectorAll("input:checked")].filter(own).map((input) => input.value).join(" ");
    for (const view of choice.querySelectorAll("[data-view]")) {
      if (own(view)) view.hidden = view.dataset.view !== chosen;
    }
  });
}

// Browsers keep what was checked when a page is loaded again.
for (const input of document.querySelectorAll(".choice input:checked")) {
  input.dispatchEvent(new Event("change", {bubbles: true}));
}

function tools(place, actions) {
  const box = document.createElement("span");
  box.className = "tools";
  for (const [name, said, act] of actions) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.setAttribute("aria-label", said);
    button.addEventListener("click", act);
    box.append(button);
  }
  place.prepend(box);
}

function csv(table) {
  const quoted = (cell) => {
    const figure = cell.dataset.value ?? cell.textContent.replaceAll("\u00a0", " ");
    return /[",\n]/.test(figure) ? `"${figure.replaceAll('"', '""')}"` : figure;
  };
  return [...table.rows].map((row) => [...row.cells].map(quoted).join(",") + "\n").join("");
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages from a disk have no clipboard everywhere.
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  const name = button.textContent;
  button.textContent = "copied";
  setTimeout(() => button.textContent = name, 1500);
}

for (const table of document.querySelectorAll("table")) {
  const said = table.caption.textContent;
  // Where a page is narrow each cell stands on a line of its own, below the head of its row.
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  if (table.matches(".cards")) {
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, at) => {
        // The head of a row speaks for itself, unless it is a number.
        if (at > 0 || /^[\d–]+$/.test(cell.textContent)) cell.dataset.head = heads[at];
      });
    }
  }
  tools(table.caption, [["CSV", `Copy as CSV: ${said}`, (event) => copy(csv(table), event.target)]]);
}

// A chart is text and shapes at places of the page; drawn again at the same places it is one SVG.
const PAINT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity",
  "vector-effect"];

function escaped(text) {
  return text.replace(/[&<>"]/g, (mark) => `&#${mark.charCodeAt(0)};`);
}

function picture(figure) {
  const frame = figure.getBoundingClientRect();
  const [width, height] = [Math.ceil(frame.width), Math.ceil(frame.height)];
  const parts = [];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const box = ({left, top, width, height}) =>
    `x="${(left - frame.left).toFixed(1)}" y="${(top - frame.top).toFixed(1)}" width="${width.toFixed(1)}" ` +
    `height="${height.toFixed(1)}"`;
  const draw = (node) => {
    if (node.nodeType === Node.TEXT_NODE) {
      const range = document.createRange();
      range.selectNodeContents(node);
      const place = range.getClientRects()[0];
      if (!place || !node.textContent.trim()) return;
      const {color, fontSize, fontWeight} = getComputedStyle(node.parentElement);
      parts.push(`<text x="${(place.left - frame.left).toFixed(1)}" y="${(place.top - frame.top + place.height * 0.78)
        .toFixed(1)}" font-size="${fontSize}" font-weight="${fontWeight}" fill="${color}">` +
        `${escaped(node.textContent.trim())}</text>`);
      return;
    }
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches("details, script, .tools, .strut, [hidden], title")) return;
    const style = getComputedStyle(node);
    if (node instanceof SVGSVGElement) {
      const drawn = [...node.querySelectorAll("path, polyline, polygon, rect")].map((shape) => {
        const copied = shape.cloneNode(false);
        const paint = getComputedStyle(shape);
        copied.removeAttribute("class");
        for (const name of PAINT) copied.setAttribute(name, paint.getPropertyValue(name));
        return new XMLSerializer().serializeToString(copied);
      });
      parts.push(`<svg ${box(node.getBoundingClientRect())} viewBox="${node.getAttribute("viewBox")}" ` +
        `preserveAspectRatio="none">${drawn.join("")}</svg>`);
      return;
    }
    const place = node.getBoundingClientRect();
    if (node !== figure && style.backgroundColor !== "rgba(0, 0, 0, 0)") {
      parts.push(`<rect ${box(place)} fill="${style.backgroundColor}"/>`);
    }
    if (node.matches(".area")) {
      parts.push(`<rect ${box(place)} fill="none" stroke="${colour("--grid")}"/>`);
    }
    node.childNodes.forEach(draw);
  };
  draw(figure);
  return [width, height, `<svg xmlns="${figure.querySelector("svg").namespaceURI}" width="${width}" height="${height}" ` +
    `viewBox="-8 -8 ${width + 16} ${height + 16}" font-family="system-ui, sans-serif">` +
    `<rect x="-8" y="-8" width="100%" height="100%" fill="${colour("--page")}"/>${parts.join("")}</svg>`];
}

function save(address, name) {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
}

for (const figure of document.querySelectorAll("figure.chart")) {
  const title = figure.querySelector("figcaption").textContent;
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").toLowerCase();
  const address = () => {
    const [width, height, text] = picture(figure);
    return [width, height, `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`];
  };
  tools(figure.querySelector("figcaption"), [
    ["SVG", `Save as SVG: ${title}`, () => save(address()[2], `${name}.svg`)],
    ["PNG", `Save as PNG: ${title}`, async () => {
      const [width, height, source] = address();
      const image = new Image();
      image.src = source;
      await image.decode();
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [width * 2, height * 2];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      save(canvas.toDataURL("image/png"), `${name}.png`);
    }],
  ]);
}
