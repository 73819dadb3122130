// Names and roles that the themes leave out, for screen readers and keyboards.
(() => {
  const each = (selector, act) => document.querySelectorAll(selector).forEach(act);

  // What can be scrolled can be reached by keyboard.
  const makeReachable = () => each("pre, .pst-scrollable-table-container, div.math, dt.sig", (box) => {
    if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
    else if (!box.closest(".pst-scrollable-table-container[tabindex]")) box.removeAttribute("tabindex");
  });

  document.addEventListener("DOMContentLoaded", () => {
    // The words on these are their names.
    each("details.hide > summary, .search-button-field", (one) => one.removeAttribute("aria-label"));
    // The arrow in the menu opens the pages below the link beside it.
    each("nav li > details > summary", (arrow) => {
      const link = arrow.closest("li").querySelector("a");
      if (!arrow.innerText.trim() && link) arrow.setAttribute("aria-label", `Pages of ${link.textContent.trim()}`);
    });
    // The parameters of a long signature are lines, not definitions.
    each("dt.sig dl, dt.sig dl > dd", (one) => one.setAttribute("role", "none"));
  });
  addEventListener("load", makeReachable);
  addEventListener("resize", makeReachable);
})();
