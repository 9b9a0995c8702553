"""Parameters and batches on several contexts: shares of the batch, and where the gradients of replicas meet."""
