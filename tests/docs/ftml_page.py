"""The page of optimizer.FTML: its constructor, and every method that the page lists."""

import numpy as np

from gluongraph import nd, optimizer

ftml = optimizer.FTML(beta1=0.6, beta2=0.999, epsilon=1e-08, learning_rate=0.1, wd=0.01, clip_gradient=0.5)
ftml.rescale_grad = 0.5

W = np.array([0.3, -0.2, 1.0], np.float32)
GRADS = [np.array(g, np.float32) for g in ([0.4, -3.0, 0.1], [0.2, 2.0, -0.3], [-0.1, 0.5, 0.2])]

# create_state and update
weight, state = nd.array(W), ftml.create_state(0, nd.array(W))
steps = []
for grad in GRADS:
    ftml.update(0, weight, nd.array(grad), state)
    steps.append(weight.asnumpy())
    print(steps[-1])

# the same from a half-precision weight, with a master copy
mixed = optimizer.FTML(learning_rate=0.1, wd=0.01, clip_gradient=0.5, rescale_grad=0.5, multi_precision=True)
half = nd.array(W, dtype="float16")
mixed_state = mixed.create_state_multi_precision(0, half)
mixed.update_multi_precision(0, half, nd.array(GRADS[0], dtype="float16"), mixed_state)

# the registry
created = optimizer.Optimizer.create_optimizer("ftml", beta1=0.5)


@optimizer.Optimizer.register
class MyFTML(optimizer.FTML):
    """A subclass, known by its name from now on."""


registered = optimizer.Optimizer.create_optimizer("myftml")

# rates and multipliers
ftml.set_learning_rate(0.25)
ftml.set_lr_mult({0: 0.5})
ftml.set_wd_mult({0: 0.0})
