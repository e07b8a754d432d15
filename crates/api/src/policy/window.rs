//! When steps may be taken, as people write it.
//!
//! What is no schedule and what is no time zone is refused when it is applied, not found in a condition afterwards. The rules here
//! take whatever [`Window`](nrh_core::window::Window) does, which has the last word: a policy may come from an API server
//! without them. It reads names as their numbers wherever they stand, and so they do. Stricter they are in three things: names
//! of zones have to be spelled as they are, what follows a `W` is not passed over, nor what stands between `#` and `L`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::HumanDuration;
use nrh_core::action::ActionType;
use nrh_core::window::WindowType;

/// A time span that recurs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyWindow {
    /// Allow: steps are taken only while a window of this type is open; Deny: not while it is open, and this wins.
    #[serde(rename = "type")]
    pub kind: WindowType,
    /// When it opens: minute, hour, day of month, month and day of week, such as `0 22 * * 1-5`. A time that clocks skip
    /// is the first one after the gap; a time that comes twice counts once.
    #[schemars(length(min = 9, max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[^ ]+( +[^ ]+){4}$')").message("must have five fields: minute, hour, day of month, month, day of week"))]
    #[x_kube(validation = Rule::new(fields_are_in_range()).message("expected minute 0-59, hour 0-23, day of month 1-31, month 1-12 or JAN-DEC, day of week 0-7 or SUN-SAT: each `*`, or numbers, ranges such as 1-5 and steps such as */15 or 0-30/15, with commas between them"))]
    #[x_kube(validation = Rule::new(ranges_go_up()).message("a range goes from the lower to the higher: for hours 22-6 write 22-23,0-6, for days of the week FRI-MON write FRI-SUN,MON"))]
    pub schedule: String,
    /// For how long it stays open: a duration from 1s to 24h.
    pub duration: HumanDuration,
    /// Name of an IANA time zone, spelled as there, such as Europe/Berlin. Default UTC.
    #[serde(default = "default_zone")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
    /// The actions that the window applies to. Empty = all but Notify: people are notified at any time, unless Notify
    /// is named here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub actions: Vec<ActionType>,
}

/// The rule that each zone is one, in CEL, for all windows of a policy. The API server brings its own zones, and ends the rule with an
/// error that names the one which it has not. An error would be one also where somebody suspends a policy from before this rule, or the
/// controller writes its status: so windows that stand already are let be. (One by one they would cost more than a rule may.)
pub(super) const ZONES_EXIST: &str = "oldSelf == optional.of(self) || self.all(w, w.timeZone != 'Local' && !w.timeZone.contains(':') && timestamp('2026-01-01T00:00:00Z').getHours(w.timeZone) >= 0)";

fn default_zone() -> String {
    "UTC".to_owned()
}

/// Names that may stand for numbers, in the order in which the parser replaces them: a range may end with Sunday.
const NAMES: [(&str, u8); 20] = [
    ("-SUN", 7),
    ("SUN", 0),
    ("MON", 1),
    ("TUE", 2),
    ("WED", 3),
    ("THU", 4),
    ("FRI", 5),
    ("SAT", 6),
    ("JAN", 1),
    ("FEB", 2),
    ("MAR", 3),
    ("APR", 4),
    ("MAY", 5),
    ("JUN", 6),
    ("JUL", 7),
    ("AUG", 8),
    ("SEP", 9),
    ("OCT", 10),
    ("NOV", 11),
    ("DEC", 12),
];

/// The schedule without names, in CEL.
fn numbers_only() -> String {
    NAMES.iter().fold("self.upperAscii()".to_owned(), |text, (name, number)| {
        let dash = if name.starts_with('-') { "-" } else { "" };
        format!("{text}.replace('{name}', '{dash}{number}')")
    })
}

/// A regular expression for one or more of these, with commas between them. More commas than that harm nobody.
fn list(item: &str) -> String {
    format!(",*{item}(,+{item})*,*")
}

/// A number, a range of them, or every so many of a range.
fn numbers(number: &str) -> String {
    format!("{number}(-{number}({STEP})?)?")
}

/// Behind a range or a `*`.
const STEP: &str = "/0*[1-9][0-9]{0,4}";

/// The rule that each number is one of its field, in CEL.
fn fields_are_in_range() -> String {
    let plain = |number: &str| format!("([*]|{})", list(&format!("({}|[*]{STEP})", numbers(number))));
    let (minute, hour) = (plain("0*[1-5]?[0-9]"), plain("0*(1?[0-9]|2[0-3])"));
    let month = plain("0*([1-9]|1[0-2])");
    // L = the last day, W = the working day next to it.
    let day = "0*([1-9]|[12][0-9]|3[01])";
    let day = format!("([*?]|{})", list(&format!("(L|(L|{day})W|{}|[*?]{STEP})", numbers(day))));
    // 5L = the last Friday, 5#2 the second one, and with a + both kinds of day must be met.
    let weekday = "0*[0-7]";
    let weekday = list(&format!("(L|{weekday}L|({}|[*?]{STEP})(#(0*[1-5]|L))?)", numbers(weekday)));
    format!("{}.matches('^{minute} +{hour} +{day} +{month} +[+]?([*?]|{weekday})$')", numbers_only())
}

/// The rule that no range goes down, in CEL. Parts of a text of unknown length cost more there than a rule may, all but to read
/// them as one number or one duration. So a range is read as minutes and seconds: neither is above 59. What has more digits than
/// any number is no error here but for the rule before.
fn ranges_go_up() -> String {
    let ends = [(",", "s,"), ("/", "s/"), ("#", "s#"), (" ", "s "), ("-", "m")];
    let units = ends.iter().fold(format!("({} + ' ')", numbers_only()), |text, (mark, with)| {
        format!("{text}.replace('{mark}', '{with}')")
    });
    format!(
        "{units}.findAll('[0-9]{{1,6}}m0*[0-9]{{1,6}}s').all(r, duration(r).getSeconds() >= 61 * duration(r).getMinutes())"
    )
}
