"use strict";
// A button that copies a block; and a prompt before each command of a block of commands, which is not copied.
addEventListener("DOMContentLoaded", () => document.querySelectorAll(".highlight").forEach(block => {
  const pre = block.querySelector("pre"), text = pre.textContent, lines = pre.innerHTML.replace(/\n$/, "").split("\n");
  if (block.closest(".highlight-sh") && text.trimEnd().split("\n").every(line => /^[\w./]/.test(line)) && !/<<|\bdo$/m.test(text))
    pre.innerHTML = lines.map(line => '<span class="prompt"></span>' + line).join("\n");
  if (block.closest(".highlight-text") || !navigator.clipboard) return;  // what commands print; a page without https
  const button = Object.assign(document.createElement("button"), {className: "copy", textContent: "copy"});
  button.onclick = () => navigator.clipboard.writeText(text.trimEnd()).then(() => { button.textContent = "copied"; });
  block.append(button);
}));
