// Sorts a comparison by the column that is clicked, and shows only rows with the words typed above it.
for (const table of document.querySelectorAll("table.comparison")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => {
    const text = row.cells[at].textContent.trim();
    const number = text === "all" ? Infinity : parseFloat(text);
    return Number.isNaN(number) ? text.toLowerCase() : number;
  };
  const order = (a, b) => typeof a === typeof b ? (a > b) - (a < b) : typeof a === "number" ? -1 : 1;
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    if (head.title) button.title = head.title;
    head.append(button);
    button.onclick = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      table.classList.add("sorted");
      body.append(...[...rows].sort((a, b) => (up ? 1 : -1) * order(value(a, at), value(b, at))));
    };
  });
  if (rows.length > 7) {
    const words = document.createElement("input");
    words.type = "search";
    words.placeholder = "filter rows";
    words.setAttribute("aria-label", "Filter rows by words");
    words.oninput = () => rows.forEach(row => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.value.toLowerCase().split(/\s+/).every(word => text.includes(word));
    });
    table.parentElement.before(words);
  }
}
