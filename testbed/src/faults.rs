//! Fault injection: each fault for real, with the instant of the system call and the way back.
