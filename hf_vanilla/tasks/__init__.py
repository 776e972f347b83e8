"""One module per task that implements `training.task.Task`."""
