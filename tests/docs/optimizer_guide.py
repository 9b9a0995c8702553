"""The code of the guide to optimizers, with the lines that its text lost, and a custom optimizer by its three steps."""

from gluongraph import autograd, gluon, nd, optimizer

# -- a trainer with an optimizer, and with the name of one

net = gluon.nn.Dense(1)
net.initialize()
optim = optimizer.SGD(learning_rate=0.1)
trainer = gluon.Trainer(net.collect_params(), optimizer=optim)

by_name = gluon.Trainer(net.collect_params(), optimizer="adam", optimizer_params={"learning_rate": 1})

# -- the optimizers, one after the other

sgd_optimizer = optimizer.SGD(learning_rate=0.1, wd=0.0, momentum=0.8)
nag_optimizer = optimizer.NAG(learning_rate=0.1, momentum=0.8)
adagrad_optimizer = optimizer.AdaGrad(learning_rate=0.1, eps=1e-07)
rmsprop_optimizer = optimizer.RMSProp(learning_rate=0.001, rho=0.9, momentum=0.9, epsilon=1e-07, centered=False)
adadelta_optimizer = optimizer.AdaDelta(rho=0.9, epsilon=1e-07)
adam_optimizer = optimizer.Adam(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08)
adamax_optimizer = optimizer.Adamax(learning_rate=0.002, beta1=0.9, beta2=0.999)
nadam_optimizer = optimizer.Nadam(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08)
signum_optimizer = optimizer.Signum(learning_rate=0.01, momentum=0.9, wd_lh=0.0)
dcasgd_optimizer = optimizer.DCASGD(momentum=0.0, lamda=0.04)
ftrl_optimizer = optimizer.Ftrl(lamda1=0.01, learning_rate=0.1, beta=1)
ftml_optimizer = optimizer.FTML(beta1=0.6, beta2=0.999, epsilon=1e-08)
sgld_optimizer = optimizer.SGLD()

# -- an optimizer of one's own. Step 1: the update as a function of weight, gradient and state


def lion(weight, grad, mom, lr, wd, beta1, beta2):
    step = nd.sign(beta1 * mom + (1 - beta1) * grad)
    mom[:] = beta2 * mom + (1 - beta2) * grad
    weight[:] = weight - lr * (step + wd * weight)


# Step 3 and 2: a registered class that keeps the parameters, makes the state and updates


@optimizer.register
class Lion(optimizer.Optimizer):
    def __init__(self, beta1=0.9, beta2=0.99, **kwargs):
        super().__init__(**kwargs)
        self.beta1, self.beta2 = beta1, beta2

    def create_state(self, index, weight):
        return nd.zeros(weight.shape, weight.context, weight.dtype)

    def update(self, index, weight, grad, state):
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        lion(weight, grad * self.rescale_grad, state, lr, wd, self.beta1, self.beta2)


# -- all of them train

X = nd.random.normal(shape=(64, 3))
y = nd.dot(X, nd.array([[1.0], [-2.0], [0.5]]))
loss = gluon.loss.L2Loss()


def fit(optim, steps=20):
    """The mean loss before and after so many steps."""
    net = gluon.nn.Dense(1, use_bias=False)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), optim)
    losses = []
    for _ in range(steps):
        with autograd.record():
            L = loss(net(X), y)
        L.backward()
        trainer.step(len(X))
        losses.append(L.mean().asscalar())
    return losses[0], losses[-1]


OPTIMIZERS = {
    "sgd": sgd_optimizer,
    "nag": nag_optimizer,
    "adagrad": adagrad_optimizer,
    "rmsprop": rmsprop_optimizer,
    "adadelta": adadelta_optimizer,
    "adam": adam_optimizer,
    "adamax": adamax_optimizer,
    "nadam": nadam_optimizer,
    "signum": signum_optimizer,
    "dcasgd": dcasgd_optimizer,
    "ftrl": ftrl_optimizer,
    "ftml": ftml_optimizer,
    "lion": optimizer.create("lion", learning_rate=0.05),
}
losses = {name: fit(each) for name, each in OPTIMIZERS.items()}
for name, (before, after) in losses.items():
    print(f"{name:10}{before:8.3f}{after:8.3f}")
