//! Durations, as Go, the kubelet and people write them.

use std::time::Duration;

use crate::api::view::pods::back_off;
use crate::core::go_duration;
use crate::core::human_duration::{HumanDuration, MAX, MIN};

pub(super) fn durations(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let go = go_duration::parse(&text);
    if let Some(read) = go {
        let most = Duration::from_nanos(i64::MAX.unsigned_abs());
        assert!(read <= most, "{text:?} is {read:?}, longer than Go knows");
        assert_eq!(go_duration::parse(&format!("{}ns", read.as_nanos())), Some(read), "{text:?}");
        let strange = |character: char| !character.is_ascii_digit() && !"hmsnuµμ.".contains(character);
        assert!(!text.contains(strange), "{text:?} was taken");
        let sentence = format!("back-off {text} restarting failed container");
        assert_eq!(back_off(&sentence), Some(read).filter(|read| !read.is_zero()), "{text:?}");
    }
    let people = text.parse::<HumanDuration>();
    match &people {
        Ok(read) => {
            assert!((MIN..=MAX).contains(&read.get()), "{text:?} is {read}");
            assert_eq!(read.to_string().parse().as_ref(), Ok(read), "{text:?}");
            assert_eq!(go.map(|go| go.as_secs()), Some(read.get().as_secs()), "{text:?}: Go reads it otherwise");
        }
        Err(error) => assert!(error.len() < 300, "{} bytes", error.len()),
    }
    go.is_some() || people.is_ok()
}
