"""What `gluongraph bench` measures: training steps, their twins in other frameworks, and how they take turns."""
