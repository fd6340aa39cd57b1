// Search: a page is listed once, at its best match. Sphinx lists it again for each of its headings and index entries that match.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const matches = Search._performSearch;
  Search._performSearch = (...query) => {
    const listed = new Set();
    // The best result is the last one; the first field of a result is the name of its page.
    return matches(...query).reverse().filter(([page]) => !listed.has(page) && listed.add(page)).reverse();
  };
});
