//! The part of JSON Schema that the lab's schema uses.
//!
//! A complete validator of JSON Schema would be a large dependency. This one knows only the
//! keywords of `schema.json`, and fails on any other.
//!
//! Source: JSON Schema, draft 2020-12.

use serde_json::Value;

/// Returns an error with the place in `value` where it does not follow `schema`. References
/// (`$ref`) are looked up in `root`, the whole schema.
pub(crate) fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let keywords = schema.as_object().ok_or("a schema is an object")?;
    for (keyword, wanted) in keywords {
        let is_kept = match keyword.as_str() {
            "$schema" | "title" | "$defs" => true,
            "$ref" => {
                let pointer = wanted.as_str().and_then(|text| text.strip_prefix('#'));
                let target = pointer.and_then(|pointer| root.pointer(pointer));
                check(root, target.ok_or("a reference leads nowhere")?, value, at)?;
                true
            }
            "type" => is_of_type(wanted, value),
            "enum" => list(wanted)?.contains(value),
            "required" => {
                list(wanted)?.iter().all(|key| value.get(key.as_str().unwrap()).is_some())
            }
            "additionalProperties" => has_only(schema, value),
            "properties" => {
                for (key, inner) in wanted.as_object().ok_or("properties is an object")? {
                    if let Some(found) = value.get(key) {
                        check(root, inner, found, &format!("{at}/{key}"))?;
                    }
                }
                true
            }
            "items" => {
                for (n, found) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, wanted, found, &format!("{at}/{n}"))?;
                }
                true
            }
            "minimum" => value.as_f64().is_none_or(|number| Some(number) >= wanted.as_f64()),
            "minItems" => value.as_array().is_none_or(|l| Some(l.len() as u64) >= wanted.as_u64()),
            "minLength" => value.as_str().is_none_or(|s| Some(s.len() as u64) >= wanted.as_u64()),
            other => return Err(format!("this validator does not know `{other}`")),
        };
        if !is_kept {
            return Err(format!("{at}: {keyword} {wanted} is not kept by {value:.60}"));
        }
    }
    Ok(())
}

fn list(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or_else(|| String::from("a list is expected"))
}

fn is_of_type(wanted: &Value, value: &Value) -> bool {
    match wanted {
        Value::Array(several) => several.iter().any(|one| is_of_type(one, value)),
        Value::String(name) => match name.as_str() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64(),
            "null" => value.is_null(),
            _ => false,
        },
        _ => false,
    }
}

fn has_only(schema: &Value, value: &Value) -> bool {
    let known = schema.get("properties").and_then(Value::as_object);
    let (Some(known), Some(object)) = (known, value.as_object()) else { return true };
    object.keys().all(|key| known.contains_key(key))
}
