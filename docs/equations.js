// Draws what pymdownx.arithmatex has marked as an equation.
document.addEventListener("DOMContentLoaded", () => renderMathInElement(document.body, {
  delimiters: [{ left: "\\[", right: "\\]", display: true }, { left: "\\(", right: "\\)", display: false }],
}));
