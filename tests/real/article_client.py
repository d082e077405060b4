# The article's own measuring client (section 4.3), as printed. The test changes only base URL, key, model and length.
import json, time, requests

url = "https://taotoken.net/api/v1/chat/completions"
headers = {"Authorization": "Bearer sk-your-taotoken-key", "Content-Type": "application/json"}
long_prompt = "请阅读以下长文档并总结要点\n" + ("测试文本。" * 40000)
payload = {
    "model": "qwen3.6-27b-awq",
    "messages": [{"role": "user", "content": long_prompt}],
    "temperature": 0,
    "max_tokens": 64,
    "stream": True,
}
start = time.time()
first_token_time = None
token_count = 0
with requests.post(url, headers=headers, json=payload, stream=True, timeout=1800) as r:
    for line in r.iter_lines():
        if not line:
            continue
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            if first_token_time is None:
                first_token_time = time.time()
            token_count += 1
total = time.time() - start
ttft = first_token_time - start if first_token_time else None
decode_speed = token_count / (total - ttft) if ttft and total > ttft else 0
print(f"TTFT: {ttft:.1f}s")
print(f"Decode: {decode_speed:.2f} tokens/s")
