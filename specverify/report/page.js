"use strict";
(() => {
  const all = () => Array.from(document.querySelectorAll("details"));
  const reveal = () => {
    let node = location.hash ? document.getElementById(location.hash.slice(1)) : null;
    for (const target = node; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") { node.open = true; target.scrollIntoView(); }
    }
  };
  addEventListener("hashchange", reveal);
  reveal();
  let closed = [];
  addEventListener("beforeprint", () => { closed = all().filter((d) => !d.open); closed.forEach((d) => { d.open = true; }); });
  addEventListener("afterprint", () => closed.forEach((d) => { d.open = false; }));
  const place = document.getElementById("open-all");
  if (place) {
    const button = document.createElement("button");
    const label = () => { button.textContent = all().some((d) => !d.open) ? "Open every test" : "Close every test"; };
    button.type = "button";
    button.addEventListener("click", () => { const open = all().some((d) => !d.open); all().forEach((d) => { d.open = open; }); label(); });
    label();
    place.append(button);
  }
})();
