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
