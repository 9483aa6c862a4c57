//! Python data into tensors and back.
