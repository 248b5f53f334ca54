"use strict";
// On a phone, lines of a table become blocks, with the name of its column above each cell.
document.querySelectorAll("table").forEach(table => {
  const names = [...table.querySelectorAll("th")].map(head => head.textContent);
  table.querySelectorAll("tbody tr").forEach(line => [...line.cells].forEach((cell, k) => { cell.dataset.name = names[k]; }));
});
