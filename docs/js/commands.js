/* Copying a block of commands copies what one types: neither its prompts nor what the commands print. */
document.addEventListener("click", (event) => {
  const button = event.target.closest(".language-console [data-clipboard-target]");
  if (!button) return;
  const lines = document.querySelector(button.dataset.clipboardTarget).textContent.split("\n");
  const typed = lines.filter((line) => /^[$>] /.test(line)).map((line) => line.slice(2));
  button.dataset.clipboardText = typed.join("\n");
}, true);
