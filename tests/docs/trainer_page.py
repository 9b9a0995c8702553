"""The page of gluon.Trainer: its constructor, and every method and property that the page lists."""

import os
import tempfile

from gluongraph import autograd, cpu, gluon, lr_scheduler, nd

CONTEXTS = [cpu(0), cpu(1)]
X, Y = nd.random.uniform(shape=(4, 3)), nd.ones((4, 1))
loss = gluon.loss.L2Loss()


def network(ctx=None):
    net = gluon.nn.Dense(1, in_units=3, prefix="net_")
    net.initialize(ctx=ctx)
    return net


def backward(net, contexts):
    parts = [gluon.utils.split_and_load(a, contexts) for a in (X, Y)]
    with autograd.record():
        losses = [loss(net(x), y) for x, y in zip(*parts, strict=True)]
    autograd.backward(losses)


# -- the arguments: all optimizers take the four keywords, parameters come as a dictionary

net = network()
schedule = lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.1)
trainer = gluon.Trainer(
    net.collect_params(),
    "sgd",
    {"learning_rate": 0.1, "wd": 0.001, "clip_gradient": 1.0, "lr_scheduler": schedule},
    kvstore="device",
)

# -- step: one update; the learning rate is that of the optimizer

before = net.weight.data().copy()
backward(net, [cpu(0)])
trainer.step(batch_size=4)
moved = (net.weight.data() - before).abs().sum().asscalar()
rate = trainer.learning_rate

# -- allreduce_grads and update: the two halves of step, for what is done between them

halves = network(CONTEXTS)
pair = gluon.Trainer(halves.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=False)
backward(halves, CONTEXTS)
own = [g.asnumpy() for g in halves.weight.list_grad()]
pair.allreduce_grads()
summed = [g.asnumpy() for g in halves.weight.list_grad()]
pair.update(batch_size=4)
replicas = [w.asnumpy() for w in halves.weight.list_data()]

# -- compression_params: 2bit needs a threshold

packed_net = network(CONTEXTS)
packed = gluon.Trainer(
    packed_net.collect_params(), "sgd", {"learning_rate": 0.1}, compression_params={"type": "2bit", "threshold": 0.5}
)
backward(packed_net, CONTEXTS)
packed.step(4)

# -- update_on_kvstore: with an optimizer that updates there, update() is refused

stored_net = network(CONTEXTS)
stored = gluon.Trainer(stored_net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=True)
backward(stored_net, CONTEXTS)
stored.step(4)

# -- save_states and load_states: a trainer goes on where another was

first = network()
saved = gluon.Trainer(first.collect_params(), "adam", {"learning_rate": 0.1})
backward(first, [cpu(0)])
saved.step(4)
with tempfile.TemporaryDirectory() as folder:
    saved.save_states(os.path.join(folder, "trainer.states"))
    first.save_parameters(os.path.join(folder, "net.params"))
    second = network()
    second.load_parameters(os.path.join(folder, "net.params"))
    resumed = gluon.Trainer(second.collect_params(), "adam", {"learning_rate": 0.1})
    resumed.load_states(os.path.join(folder, "trainer.states"))
for n, t in ((first, saved), (second, resumed)):
    backward(n, [cpu(0)])
    t.step(4)
resumes = [n.weight.data().asnumpy() for n in (first, second)]

# -- set_learning_rate

saved.set_learning_rate(0.5)
