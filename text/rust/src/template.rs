//! Chat templates, rendered as transformers renders them.

use crate::budget::{self, MAX_VALUE_BYTES};
use crate::ffi::{invalid, Failure, Outcome, Str, INVALID_ARGUMENT, RESOURCE_EXHAUSTED};
use crate::methods;
use crate::operators;
use crate::python;
use crate::strftime::strftime;
use crate::wholes::{digits_of, Wholes};
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};
use std::cell::Cell;
use std::io::Write;

const NAME: &str = "chat_template";
/// Fuel is one unit per instruction. A request buys more by being longer, so that long chats render and loops end.
const FUEL_BASE: u64 = 100_000;
const FUEL_PER_MESSAGE: u64 = 100;
const BYTES_PER_FUEL: u64 = 16;
/// What a template usually adds to its messages, at most, in bytes.
const ROOM_BEYOND_MESSAGES: usize = 512;
/// Appended to the last message to find where its text ends in the rendered chat.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

pub struct Template {
    env: Environment<'static>,
    tokens: Map<String, Json>,
}

thread_local! {
    static NOW_S: Cell<i64> = const { Cell::new(0) }; // of the rendering that runs on this thread
}

#[repr(C)]
pub struct RenderInput {
    messages_json: Str,
    tools_json: Str,
    kwargs_json: Str,
    add_generation_prompt: i32,
    continue_final_message: i32,
    now_s: i64,
}

/// Marks what the template itself raised, so that its text reaches the client unadorned.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

fn failure(error: Error) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(e) = cause {
        if let Some(Raised(text)) = e.downcast_ref() {
            return Failure { code: INVALID_ARGUMENT, message: text.clone() };
        }
        cause = e.source();
    }
    let code = if error.kind() == ErrorKind::OutOfFuel { RESOURCE_EXHAUSTED } else { INVALID_ARGUMENT };
    let place = error.line().map_or(String::new(), |line| format!(", line {line}"));
    let detail = error.detail().map_or(String::new(), |d| format!(": {d}"));
    Failure { code, message: format!("chat template{place}: {}{detail}", error.kind()) }
}

/// `{% generation %}` only marks text for training. The tags become a condition that holds, so that their whitespace
/// control stays.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}").map(|n| n + 2) else { break };
        let tag = &rest[open..open + length];
        let is_sign = |c: char| c == '-' || c == '+';
        let (left, right) = (tag[2..].starts_with(is_sign), tag[..length - 2].ends_with(is_sign) && length > 5);
        let name = tag[2..length - 2].trim_matches(is_sign).trim();
        let replacement = match name {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        out.push_str(&rest[..open]);
        match replacement {
            Some(word) => {
                let (l, r) = (&tag[..2 + left as usize], &tag[length - 2 - right as usize..]);
                out.push_str(&format!("{l} {word} {r}"));
                rest = &rest[open + length..];
            }
            None => {
                out.push_str("{%");
                rest = &rest[open + 2..];
            }
        }
    }
    out + rest
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(|out, _, value| {
        let printed;
        let text = match value.as_str() {
            Some(text) => text,
            None if value.is_undefined() => "",
            None => {
                printed = python::to_str(value)?;
                &printed
            }
        };
        budget::charge(text.len())?; // it may be captured, and the capture printed twice, and that captured
        out.write_str(text).map_err(Error::from)
    });
    methods::install(&mut env);
    operators::install(&mut env);
    env.add_filter("tojson", python::tojson);
    // In Python strings and dicts are sequences, and an undefined value iterates over nothing.
    let sequence = |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    };
    env.add_test("sequence", sequence);
    env.add_test("iterable", move |value: &Value| sequence(value) || value.kind() == ValueKind::Iterable);
    let is_integer = |value: &Value| value.is_integer() || digits_of(value).is_some();
    env.add_test("integer", is_integer);
    env.add_test("number", move |value: &Value| value.kind() == ValueKind::Number || is_integer(value));
    env.add_function("strftime_now", |format: &str| {
        let text = strftime(format, NOW_S.get());
        text.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("strftime_now cannot print {format:?}")))
    });
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let text = python::to_str(&message)?;
        Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
    });
    env
}

fn parse(json: &[u8], what: &str, wholes: &mut Wholes) -> Outcome<Json> {
    wholes.read(json).or_else(|e| invalid(format!("{what} is not JSON: {e}")))
}

/// Reasoning comes under several names; templates read "reasoning_content" or "thinking".
fn alias_reasoning(message: &mut Map<String, Json>) {
    let names = ["reasoning_content", "thinking", "reasoning"];
    let found = names.iter().find_map(|name| message.get(*name).filter(|v| !v.is_null()).cloned());
    let Some(text) = found else { return };
    // In the order in which Python's {"thinking": …, **message, "reasoning_content": …} has them.
    let given = std::mem::take(message);
    message.insert("thinking".into(), text.clone());
    message.extend(given);
    message.insert("reasoning_content".into(), text);
}

/// Appends CONTINUE_TAG to the last text of the last message; returns that text.
fn tag_final_message(messages: &mut [Json]) -> Outcome<String> {
    let content = messages.last_mut().and_then(|m| m.get_mut("content"));
    let target = match content {
        Some(text @ Json::String(_)) => Some(text),
        Some(Json::Array(blocks)) => blocks.iter_mut().rev().find_map(|b| b.get_mut("text")),
        _ => None,
    };
    match target {
        Some(Json::String(text)) => {
            let original = text.clone();
            text.push_str(CONTINUE_TAG);
            Ok(original)
        }
        _ => invalid("continue_final_message is set, but the last message has no text to continue"),
    }
}

/// Cuts the rendered chat behind the last message's text.
fn cut_behind_tag(mut rendered: String, text: &str) -> Outcome<String> {
    let Some(at) = rendered.rfind(CONTINUE_TAG.trim_end()).filter(|_| rendered.contains(text.trim())) else {
        return invalid("continue_final_message is set, but the chat template does not print the last message");
    };
    let spacing_kept = rendered[at..].starts_with(CONTINUE_TAG);
    rendered.truncate(at);
    if !spacing_kept {
        rendered.truncate(rendered.trim_end().len());
    }
    Ok(rendered)
}

/// A Vec that refuses to grow beyond MAX_VALUE_BYTES.
struct Capped(Vec<u8>);

impl Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_VALUE_BYTES {
            return Err(std::io::Error::other("output cap"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Template {
    pub fn new(source: &str, tokens_json: &[u8]) -> Outcome<Template> {
        let Json::Object(tokens) = parse(tokens_json, "special tokens", &mut Wholes::default())? else {
            return invalid("special tokens are not a JSON object");
        };
        let mut env = environment();
        let source = without_generation_tags(source);
        if let Err(e) = env.add_template_owned(NAME, operators::rewrite(&source)) {
            // A mistake is told in the author's own source. What only fails as charged calls nests too deep to be bounded.
            env.add_template_owned(NAME, source).map_err(failure)?;
            return invalid(format!("a chain of operators in the template is too long: {e}"));
        }
        Ok(Template { env, tokens })
    }

    pub unsafe fn render(&self, input: &RenderInput) -> Outcome<Vec<u8>> {
        let (messages, tools, kwargs) =
            (input.messages_json.bytes(), input.tools_json.bytes(), input.kwargs_json.bytes());
        if input.continue_final_message != 0 && input.add_generation_prompt != 0 {
            return invalid("continue_final_message and add_generation_prompt exclude each other");
        }
        let mut wholes = Wholes::default();
        let Json::Array(mut list) = parse(messages, "messages", &mut wholes)? else {
            return invalid("messages is not an array");
        };
        if list.is_empty() {
            return invalid("messages is empty");
        }
        for (i, message) in list.iter_mut().enumerate() {
            match message {
                Json::Object(fields) => alias_reasoning(fields),
                _ => return invalid(format!("messages[{i}] is not an object")),
            }
        }
        let message_count = list.len();
        let fuel = FUEL_BASE
            + FUEL_PER_MESSAGE * list.len() as u64
            + (messages.len() + tools.len() + kwargs.len()) as u64 / BYTES_PER_FUEL;
        let continued = (input.continue_final_message != 0).then(|| tag_final_message(&mut list)).transpose()?;

        let mut context = self.tokens.clone();
        context.insert("documents".into(), Json::Null);
        if !kwargs.is_empty() {
            let Json::Object(more) = parse(kwargs, "chat_template_kwargs", &mut wholes)? else {
                return invalid("chat_template_kwargs is not an object");
            };
            context.extend(more);
        }
        let tools_given = if tools.is_empty() { Json::Null } else { parse(tools, "tools", &mut wholes)? };
        context.insert("tools".into(), tools_given);
        context.insert("messages".into(), Json::Array(list));
        context.insert("add_generation_prompt".into(), Json::Bool(input.add_generation_prompt != 0));

        // Text that is gathered message by message is made anew with each.
        let bytes = (messages.len() + tools.len() + kwargs.len()).saturating_mul(message_count);
        let room = messages.len() + ROOM_BEYOND_MESSAGES;
        let rendered = self.run(wholes.to_value(&context), fuel, bytes, room, input.now_s)?;
        match continued {
            Some(text) => Ok(cut_behind_tag(rendered, &text)?.into_bytes()),
            None => Ok(rendered.into_bytes()),
        }
    }

    /// `bytes`: what it may make beyond the usual. `room`: about how long the text will be.
    fn run(&self, context: Value, fuel: u64, bytes: usize, room: usize, now_s: i64) -> Outcome<String> {
        let mut env = self.env.clone(); // cheap: its parts are shared
        env.set_fuel(Some(fuel));
        NOW_S.set(now_s);
        budget::reset(bytes);
        let mut out = Capped(Vec::with_capacity(room));
        let template = env.get_template(NAME).map_err(failure)?;
        let done = template.render_captured_to(context, &mut out).map(|_| ());
        match done {
            Ok(_) => Ok(String::from_utf8(out.0).expect("templates write text")),
            Err(e) if e.kind() == ErrorKind::WriteFailure => Err(Failure {
                code: RESOURCE_EXHAUSTED,
                message: format!("chat template prints more than {} MB", MAX_VALUE_BYTES >> 20),
            }),
            Err(e) if e.kind() == ErrorKind::OutOfFuel && e.detail().is_none() => Err(Failure {
                code: RESOURCE_EXHAUSTED,
                message: format!("chat template ran more than {fuel} instructions"),
            }),
            Err(e) => Err(failure(e)),
        }
    }
}
