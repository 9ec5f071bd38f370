"""How things look: text that shows itself as it is, HTML and drawing primitives. Imports nothing of the product."""
