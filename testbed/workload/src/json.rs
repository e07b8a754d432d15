//! Just enough JSON to rewrite a CNI configuration: the members of one object, values left as they are written.

/// The members of a JSON object in their order, each value as its own text.
pub(crate) fn members(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let mut rest = text.trim().strip_prefix('{').ok_or("not a JSON object")?.trim_start();
    let mut found = Vec::new();
    if rest.starts_with('}') {
        return Ok(found);
    }
    loop {
        let (key, after) = value(rest)?;
        let key = unquote(key).ok_or_else(|| format!("not a member name: {key}"))?;
        let after = after.trim_start().strip_prefix(':').ok_or_else(|| format!("no colon after {key:?}"))?;
        let (member, after) = value(after.trim_start())?;
        found.push((key, member));
        let after = after.trim_start();
        if let Some(next) = after.strip_prefix(',') {
            rest = next.trim_start();
        } else if after.starts_with('}') {
            return Ok(found);
        } else {
            return Err(format!("no comma or brace after {key:?}"));
        }
    }
}

/// The text of a string without its quotes; names and paths here need no escapes.
pub(crate) fn unquote(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"').filter(|text| !text.contains('\\'))
}

/// `text` as a JSON string.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            control if control < ' ' => quoted.push(' '),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Splits the value at the start of `text` from what follows it.
fn value(text: &str) -> Result<(&str, &str), String> {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            if !in_string && depth == 0 {
                return Ok(text.split_at(at + 1));
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return Ok(text.split_at(at + 1));
                }
            }
            b',' | b'}' | b']' | b':' if depth == 0 => return scalar(text, at),
            byte if byte.is_ascii_whitespace() && depth == 0 => return scalar(text, at),
            _ => {}
        }
    }
    Err("the JSON ends too early".into())
}

fn scalar(text: &str, end: usize) -> Result<(&str, &str), String> {
    if end == 0 { Err(format!("no value before {:?}", text.chars().next())) } else { Ok(text.split_at(end)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_values_as_written() {
        let text = r#" {"a" : "x,}y\"" , "b":{"c":[1, {"d":"]"}]},"e":null , "f": 12} "#;
        let found = members(text).unwrap();
        assert_eq!(found, [("a", r#""x,}y\"""#), ("b", r#"{"c":[1, {"d":"]"}]}"#), ("e", "null"), ("f", "12")]);
        assert_eq!(members("{}").unwrap(), []);
    }

    #[test]
    fn broken_text_is_refused() {
        for broken in ["", "[]", "{", r#"{"a"}"#, r#"{"a":}"#, r#"{"a":1 "b":2}"#, r#"{"a":"x"#, "{1:2}"] {
            assert!(members(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn quoting_is_undone_by_unquoting() {
        assert_eq!(unquote(&quote("/run/cni gate")), Some("/run/cni gate"));
        assert_eq!(quote("a\"b"), r#""a\"b""#);
        assert_eq!(unquote("12"), None);
    }
}
