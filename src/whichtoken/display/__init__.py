"""How results look: safe text, HTML and drawing primitives. Imports nothing from the rest of the package."""
