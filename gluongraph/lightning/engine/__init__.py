"""How a batch is computed: as one compiled call (fused), with Python between gradients and update (staged), or by the
framework of the module itself (eager)."""
