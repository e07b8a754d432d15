//! A real control plane and real nodes on one Linux machine.
