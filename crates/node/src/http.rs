//! One request on a connection of its own.

use std::pin::pin;

/// Drives a connection while `call` sends its request and reads the answer. The end of the connection is not that of the
/// answer: what has come is read to its end.
pub async fn driven<T>(connection: impl Future, call: impl Future<Output = T>) -> T {
    let (mut connection, mut call, mut open) = (pin!(connection), pin!(call), true);
    loop {
        tokio::select! {
            biased;
            answer = &mut call => return answer,
            _ = &mut connection, if open => open = false,
        }
    }
}
