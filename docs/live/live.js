// Which script drives which part.
export async function start(part) {
  const body = document.createElement("div");
  try {
    const { default: build } = await import(`./part_${part.dataset.live}.js`);
    await build(body);
    part.querySelector(".live-still").remove();
    part.append(body);
    part.dataset.ready = "";
  } catch (error) {
    part.querySelector(".live-still span").replaceChildren(`It could not start: ${error.message}.`);
  }
}
