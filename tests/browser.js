// What tests ask a page that is open in a browser.

const numbers = (colour) => (colour.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);

const laidOver = (top, below) => {
  const share = top[3] ?? 1;
  return [0, 1, 2].map((channel) => top[channel] * share + below[channel] * (1 - share));
};

const luminance = (colour) => {
  const [red, green, blue] = colour
    .map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};

const ground = (element) => {
  const layers = [];
  for (let one = element; one; one = one.parentElement) {
    layers.push(numbers(getComputedStyle(one).backgroundColor));
  }
  return layers.reverse().reduce((below, top) => laidOver(top, below), [255, 255, 255]);
};

const named = (element) =>
  `${element.tagName}.${element.getAttribute("class") ?? ""} ${element.textContent.trim().slice(0, 40)}`;

const seen = (element) => {
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.height > 0 && element.checkVisibility();
};

// [element, ratio by WCAG] of every text that is seen.
function contrasts() {
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !seen(element)) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const ink = laidOver(numbers(element.closest("svg") ? style.fill : style.color), below);
    const [light, dark] = [luminance(ink), luminance(below)].sort((a, b) => b - a);
    found.push([named(element), (light + 0.05) / (dark + 0.05)]);
  }
  return found;
}

// Elements beyond the page's sides, unless they lie in a box of their own that scrolls.
function stickingOut() {
  const width = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")]
    .filter((element) => seen(element) && !element.closest(".scroll, pre, .clip"))
    .filter((element) => {
      const box = element.getBoundingClientRect();
      return box.right > width + 1 || box.left < -1;
    })
    .map(named);
}

// [width, height] of every element with an id.
function sizes() {
  const boxes = [...document.querySelectorAll("[id]")].map((one) => [one.id, one.getBoundingClientRect()]);
  return Object.fromEntries(boxes.map(([id, box]) => [id, [box.width, box.height]]));
}

// Drawings too small to show anything.
function flatDrawings() {
  return [...document.querySelectorAll("svg[role=img]")]
    .filter((one) => one.checkVisibility())
    .filter((one) => one.getBoundingClientRect().width < 60 || one.getBoundingClientRect().height < 15)
    .map(named);
}

// [boxes that scroll sideways, those of them that no key reaches].
function scrolling() {
  const boxes = [...document.querySelectorAll("body *")].filter(
    (one) =>
      one.checkVisibility() &&
      one.scrollWidth > one.clientWidth + 1 &&
      getComputedStyle(one).overflowX === "auto",
  );
  return [boxes.map(named), boxes.filter((one) => one.tabIndex !== 0).map(named)];
}
