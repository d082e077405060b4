"""One line for people about an error of this package, in their language."""

from __future__ import annotations

from keys.errors import (
    AmbiguousName,
    DuplicateReservation,
    InvalidKey,
    InvalidReason,
    KeysError,
    NoSuchKey,
    QuotaExceeded,
    StoreReason,
    StoreUnavailable,
    UnknownKey,
)
from keys.language import choose

__all__ = ["explain"]

_STORE_CHINESE: dict[StoreReason, str] = {
    "busy": "{path} 被其他进程锁定；请稍后重试，或结束占用它的进程",
    "closed": "{path} 已关闭",
    "damaged": "{path} 已损坏或不是数据库；请恢复备份，或移走它以重新开始",
    "disk_full": "{path} 所在磁盘空间已满；请清理后重试",
    "foreign": "{path} 是其他程序的数据库；请换一个状态目录",
    "io_error": "使用 {path} 时磁盘出错或不再接受写入；请检查剩余空间、配额和磁盘状态",
    "newer_schema": "{path} 由更新版本的 dcugate 写入；请升级本程序，或恢复旧的备份",
    "not_writable": "无法打开或写入 {path}；请检查它是否存在及其所有者",
    "pepper_damaged": "{path} 的内容不是 32 字节；请恢复备份（缺少它，已签发的密钥都无法识别）",
    "pepper_exposed": "{path} 可被本机所有用户读取；请执行：chmod 600 {path}",
    "pepper_missing": "{path} 缺失，但已有密钥用它签发；请恢复它，或把数据库也移走",
}
_INVALID_CHINESE: dict[InvalidReason, str] = {
    "name": "密钥名称须为 1 到 64 个可打印字符",
    "purpose": "密钥用途只能是 chat 或 agent",
    "limit_tokens": "密钥的 token 上限须为 1 到 9000000000000000000 的整数",
    "taken": "另一个密钥已有相同的摘要",
}


def explain(error: KeysError) -> str:
    """Return one line that says what is wrong and what to do, in the user's language, without any secret."""
    return choose(str(error), _chinese(error)).replace("\n", " ")


def _chinese(error: KeysError) -> str:
    match error:
        case StoreUnavailable():
            return _STORE_CHINESE[error.reason].format(path=error.path)
        case InvalidKey():
            return _INVALID_CHINESE[error.reason]
        case UnknownKey():
            return "API 密钥无效"
        case QuotaExceeded():
            return f"{error.limit_name}：请求 {error.requested_tokens} 个 token，只剩 {error.remaining_tokens} 个"
        case DuplicateReservation():
            return f"请求 {error.request_id} 已预留或已结算"
        case NoSuchKey():
            return f"没有编号或名称为 {error.id_or_name!r} 的密钥"
        case AmbiguousName():
            return f"有 {len(error.ids)} 个有效密钥名为 {error.name!r}；请给出其中一个编号：{', '.join(error.ids)}"
    return str(error)
