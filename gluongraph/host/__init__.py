"""The process and the machine: threads, interrupts, lazy imports, late-bound services, files, the terminal."""
