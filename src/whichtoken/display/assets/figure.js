// A figure as a picture: every <button data-picture="name"> saves the panels of its figure as PNG, as they stand on the page.
for (const button of document.querySelectorAll("button[data-picture]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const panels = button.closest("figure").querySelector(".panels"), frame = panels.getBoundingClientRect(), scale = 3;
    const page = getComputedStyle(document.body), canvas = document.createElement("canvas"), brush = canvas.getContext("2d");
    canvas.width = scale * frame.width;
    canvas.height = scale * frame.height;
    brush.fillStyle = page.backgroundColor;
    brush.fillRect(0, 0, canvas.width, canvas.height);
    for (const panel of panels.querySelectorAll("svg")) {
      const place = panel.getBoundingClientRect(), copy = panel.cloneNode(true), image = new Image();
      copy.setAttribute("width", scale * place.width);
      copy.setAttribute("height", scale * place.height);
      copy.style.color = page.color;
      copy.style.fontFamily = "sans-serif";
      image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
      await image.decode();
      brush.drawImage(image, scale * (place.left - frame.left), scale * (place.top - frame.top));
    }
    const link = document.createElement("a");
    link.download = button.dataset.picture;
    link.href = canvas.toDataURL("image/png");
    link.click();
  });
}
