"""What a compiled step is made of, gathered once (`anatomy`) and shown as text, SVG, or a page for a browser."""
