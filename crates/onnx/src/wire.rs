//! Whether bytes are a protocol buffer that a recursive parser can take: lengths lie within what holds them, and messages are not nested
//! without end.

/// A kind of message of a model, as far as it holds others.
#[derive(Clone, Copy)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    Sequence,
    /// One that holds none.
    Plain,
}

/// Deepest nesting: a subgraph within a subgraph takes three.
const DEEPEST: usize = 64;

impl Message {
    /// True for a field of whole numbers, one after the other.
    const fn has_packed(self, number: u64) -> bool {
        matches!((self, number), (Message::Tensor, 1 | 5 | 7) | (Message::Attribute, 8))
    }
    /// What a field holds, where that is a message (onnx.proto).
    const fn field(self, number: u64) -> Option<Message> {
        Some(match (self, number) {
            (Message::Model, 7) | (Message::Attribute, 6) => Message::Graph,
            (Message::Graph, 1) => Message::Node,
            (Message::Graph, 5) | (Message::Attribute, 5) => Message::Tensor,
            (Message::Graph, 11..=13) => Message::ValueInfo,
            (Message::Node, 5) => Message::Attribute,
            (Message::ValueInfo, 2) | (Message::Sequence, 1) => Message::Type,
            (Message::Type, 1) => Message::TensorType,
            (Message::Type, 4) => Message::Sequence,
            (Message::TensorType, 2) => Message::Shape,
            (Message::Model, 8 | 14) | (Message::Tensor, 13) | (Message::Shape, 1) => Message::Plain,
            _ => return None,
        })
    }
}

/// Asks that.
pub(crate) fn check(bytes: &[u8]) -> Result<(), String> {
    // Without recursion: the ends of the messages that hold this place, innermost last.
    let mut open = vec![(Message::Model, bytes.len())];
    let mut at = 0;
    while let Some(&(message, end)) = open.last() {
        if at == end {
            open.pop();
            continue;
        }
        let start = at;
        let wrong = |what: &str| format!("byte {start}: {what}");
        let tag = varint(bytes, &mut at, end).ok_or_else(|| wrong("the file ends within a field"))?;
        let (number, wire) = (tag >> 3, tag & 7);
        if number == 0 {
            return Err(wrong("a field has number 0"));
        }
        let length = match wire {
            0 => {
                varint(bytes, &mut at, end).ok_or_else(|| wrong("a number has no end"))?;
                0
            }
            1 => 8,
            5 => 4,
            2 => varint(bytes, &mut at, end).ok_or_else(|| wrong("a length has no end"))?,
            _ => return Err(wrong(&format!("field {number} has wire type {wire}, which models do not use"))),
        };
        let room = (end - at) as u64;
        if length > room {
            return Err(wrong(&format!("field {number} is {length} bytes long, {room} are left")));
        }
        match message.field(number) {
            Some(inner) if wire == 2 => {
                if open.len() >= DEEPEST {
                    return Err(wrong(&format!("messages are nested more than {DEEPEST} deep")));
                }
                open.push((inner, at + length as usize));
            }
            Some(_) => return Err(wrong(&format!("field {number} is no message"))),
            None if wire == 2 && message.has_packed(number) => {
                let end = at + length as usize;
                while at < end {
                    varint(bytes, &mut at, end).ok_or_else(|| wrong(&format!("field {number} ends within a number")))?;
                }
            }
            None => at += length as usize,
        }
    }
    Ok(())
}

/// A number in groups of seven bits, at most ten of them.
fn varint(bytes: &[u8], at: &mut usize, end: usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = *bytes.get(..end)?.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 127).checked_shl(shift).unwrap_or(0);
        if byte < 128 {
            return Some(value);
        }
    }
    None
}
