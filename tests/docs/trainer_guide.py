"""The code of the guide to gluon.Trainer, with the lines that its text lost."""

from gluongraph import autograd, gluon, nd, optimizer

# -- a network and its trainer

net = gluon.nn.Dense(1)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), optimizer="sgd", optimizer_params={"learning_rate": 1})

# -- forward and backward

batch_size = 8
X = nd.random.uniform(shape=(batch_size, 4))
y = nd.random.uniform(shape=(batch_size,))

loss = gluon.loss.L2Loss()


def forward_backward():
    with autograd.record():
        L = loss(net(X), y)
    L.backward()


forward_backward()

# -- one step

curr_weight = net.weight.data().copy()
print(curr_weight)

trainer.step(batch_size)
print(net.weight.data())

print(curr_weight - net.weight.grad() * 1 / batch_size)
stepped = net.weight.data().copy()

# -- an optimizer as an object

optim = optimizer.Adam(learning_rate=1)
trainer = gluon.Trainer(net.collect_params(), optim)

forward_backward()
trainer.step(batch_size)
after_adam = net.weight.data().copy()
print(after_adam)

# -- the key-value store, and compression: arguments of the constructor

stores = [
    gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, kvstore=name, update_on_kvstore=choice)
    for name in ("local", "device")
    for choice in (None, True, False)
]

# -- the learning rate

rate = trainer.learning_rate
print(rate)

trainer.set_learning_rate(0.1)
new_rate = trainer.learning_rate
print(new_rate)
